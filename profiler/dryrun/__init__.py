"""A step that nobody runs: a program as one rank of a job of any size, in one process on the CPU.

Nothing is priced here: `analyzers.forecast.dry` makes times and memory of the record.

It may import `ledger`, `ledger.answers`, `ledger.records`, `ledger.report`, `ledger.tables`, `ledger.words`,
`profiler.dryrun.device`, `profiler.dryrun.shims`, `profiler.live.capture`, `profiler.live.cause`,
`profiler.live.session`, `profiler.live.times`, `profiler.live.values`.
Start reading in `run`; `script` runs a file, `capture` has what is recorded, `device` what stands for a GPU,
`shims` what is replaced.
"""
