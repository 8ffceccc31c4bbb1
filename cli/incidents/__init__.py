"""`shardtoll demo --incidents`: planted faults and their scoreboard.

It may import `analyzers`, `analyzers.roofline`, `cli.inputs`, `cli.jobs`, `dashboards.terminal`,
`dashboards.words`, `ledger`, `ledger.words`.
Start reading in `scoreboard`.
"""
