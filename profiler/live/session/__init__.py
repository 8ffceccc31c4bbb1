"""The session around training steps: opening, regions, checks, gathering all ranks, closing.

It may import `ledger`, `ledger.disk`, `ledger.records`, `ledger.tables`, `profiler.live.capture`,
`profiler.live.cause`, `profiler.live.flight`, `profiler.live.times`, `profiler.live.values`,
`profiler.traces.collectives`, `profiler.traces.file`, `profiler.traces.rank`.
Start reading in `session`.
"""
