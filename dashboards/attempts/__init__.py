"""Several attempts at one task, next to each other.

It may import `dashboards.facts`, `dashboards.facts.first_screen`, `dashboards.page.html`,
`dashboards.terminal`, `dashboards.words`, `ledger`, `ledger.records`, `ledger.tables`, `ledger.words`.
Start reading in `side_by_side`.
"""
