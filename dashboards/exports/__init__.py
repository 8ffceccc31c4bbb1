"""The report for other programs: JSON, CSV, Parquet, Markdown, SARIF, Perfetto, Prometheus, trackers.

It may import `dashboards.facts`, `dashboards.facts.first_screen`, `dashboards.page`, `dashboards.words`,
`ledger`, `ledger.foreign`, `ledger.records`, `ledger.report`, `ledger.words`.
Start reading in `perfetto`.
"""
