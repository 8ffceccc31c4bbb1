"""Results of `shardtoll verify`, for terminals and files.

It may import `dashboards.facts`, `dashboards.terminal`, `dashboards.words`, `ledger`, `ledger.answers`,
`ledger.report`, `ledger.words`.
Start reading in `verdict`.
"""
