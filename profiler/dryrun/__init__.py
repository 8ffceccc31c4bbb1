"""A step that nobody runs: a program as one rank of a job of any size, in one process on the CPU.

It may import `ledger`, `profiler.live.cause`, `profiler.live.session`, `profiler.live.values` and torch.
Start reading in `run`; `script` runs a file, `shim` has what is replaced, `capture` what is recorded.
"""
