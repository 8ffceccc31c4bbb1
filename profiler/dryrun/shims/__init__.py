"""Replacements of torch's own calls while a program runs dry; they go again with it.

It may import `ledger.answers`, `profiler.dryrun.device`, `profiler.live.cause`.
Start reading in `shim`, which puts all of it in place; `replaced` takes it back.
"""
