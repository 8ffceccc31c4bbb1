"""Answers of `shardtoll whatif`, for terminals, files and pages.

It may import `dashboards.facts`, `dashboards.page.html`, `dashboards.terminal`, `dashboards.words`,
`ledger.answers`.
Start reading in `what_if_shown`.
"""
