"""Results of `shardtoll check`, for terminals, files and pull requests.

It may import `dashboards.terminal`, `dashboards.words`, `ledger.answers`, `ledger.report`, `ledger.words`.
Start reading in `words`.
"""
