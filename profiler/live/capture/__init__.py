"""From hooks to rows: the dispatch mode of surveyed steps, the watching of all others, and the recorder.

It may import `ledger.records`, `ledger.tables`, `profiler.live.cause`, `profiler.live.flight`,
`profiler.live.times`, `profiler.live.values`.
Start reading in `recorder`.
"""
