"""Facts of a report in the shape that several renderers draw.

It may import `dashboards.words`, `ledger`, `ledger.answers`, `ledger.records`, `ledger.tables`,
`ledger.words`.
Start reading in `summary`.
"""
