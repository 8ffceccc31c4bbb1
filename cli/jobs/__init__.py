"""Jobs that commands start: ranks, stages, the fork server.

It may import `analyzers`, `analyzers.roofline`, `analyzers.roofline.machines`, `cli.inputs`,
`dashboards.attempts`, `dashboards.page`, `ledger`, `ledger.disk`, `ledger.measured`, `profiler`,
`profiler.calibrate`, `profiler.live.entry`, `profiler.live.session`.
Start reading in `ranks`.
"""
