"""Jobs that commands start: ranks, stages, the fork server.

It may import `analyzers`, `analyzers.advise`, `analyzers.advise.from_run`, `analyzers.forecast.dry`,
`analyzers.roofline`, `analyzers.roofline.machines`, `cli.inputs`, `dashboards.attempts`, `dashboards.page`,
`dashboards.terminal`, `ledger`, `ledger.answers`, `ledger.disk`, `ledger.foreign`, `ledger.measured`,
`ledger.words`, `profiler`, `profiler.calibrate`, `profiler.dryrun`, `profiler.dryrun.device`,
`profiler.live.entry`, `profiler.live.session`.
Start reading in `ranks`.
"""
