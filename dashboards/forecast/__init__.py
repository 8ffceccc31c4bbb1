"""Forecasts for people: tables of priced rows, scaling curves as text and as a figure.

Start reading in `rows_shown`.

It may import `dashboards.page.html`, `dashboards.terminal`, `dashboards.words`, `ledger.answers`,
`ledger.words`.
"""
