"""Advice on a terminal, as Markdown and as a page.

Start reading in `advice_shown`.

It may import `dashboards.page.html`, `dashboards.terminal`, `dashboards.words`, `ledger.answers`,
`ledger.words`.
"""
