"""Many files into one job: which belong together, executors, the cache.

It may import `ledger.records`, `ledger.tables`, `profiler.traces.collectives`, `profiler.traces.file`,
`profiler.traces.nsys`, `profiler.traces.rank`.
Start reading in `job`.
"""
