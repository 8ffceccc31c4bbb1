"""The bill on a terminal, by rich.

It may import `dashboards.facts`, `dashboards.facts.first_screen`, `dashboards.words`, `ledger`,
`ledger.answers`, `ledger.report`, `ledger.words`.
Start reading in `terminal`.
"""
