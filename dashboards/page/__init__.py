"""The self-contained HTML page, and the report in a notebook; `assets` has its script and style.

It may import `dashboards.facts`, `dashboards.facts.first_screen`, `dashboards.page.html`,
`dashboards.page.views`, `dashboards.words`, `ledger`, `ledger.report`, `ledger.words`.
Start reading in `page`, which puts together what `views` draw and `html` frames.
"""
