"""The answer of `shardtoll hang` for people: on a terminal, as Markdown and as a page.

It may import `dashboards.page.html`, `dashboards.terminal`, `dashboards.words`, `ledger.answers`,
`ledger.records`, `ledger.words`.
Start reading in `hang_shown`.
"""
