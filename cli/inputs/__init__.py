"""Input and output of commands: paths, options, traces, files written.

It may import `analyzers.hang`, `analyzers.hta`, `analyzers.roofline`, `dashboards.app`,
`dashboards.terminal`, `dashboards.words`, `ledger`, `ledger.disk`, `ledger.foreign`, `ledger.records`,
`ledger.report`, `ledger.tables`, `profiler.hang`, `profiler.traces`, `profiler.traces.file`,
`profiler.traces.job`.
Start reading in `inputs`.
"""
