"""Parts of the page around its views: frame, style, script, tables.

It may import `dashboards.facts`, `dashboards.facts.first_screen`, `dashboards.words`, `ledger`,
`ledger.words`.
Start reading in `frame`.
"""
