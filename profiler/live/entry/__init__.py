"""Ways in without editing a training script: scripts, test budgets, stand-in process groups.

It may import `ledger`, `ledger.answers`, `ledger.records`, `ledger.report`, `profiler.live.cause`,
`profiler.live.integrations`, `profiler.live.session`, `profiler.live.times`.
Start reading in `script`.
"""
