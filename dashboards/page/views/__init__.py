"""The views, one figure a file, listed in views.py.

It may import `dashboards.facts`, `dashboards.page.html`, `dashboards.words`, `ledger`, `ledger.answers`,
`ledger.records`, `ledger.tables`, `ledger.words`.
Start reading in `views`.
"""
