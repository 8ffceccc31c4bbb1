"""Results of `shardtoll compare`, for terminals, files and pages.

It may import `dashboards.page.html`, `dashboards.terminal`, `dashboards.words`, `ledger.answers`,
`ledger.words`.
Start reading in `rows`.
"""
