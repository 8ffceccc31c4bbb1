"""Facts from a rank's events together: its steps, its groups, and which collective each kernel carried out.

It may import `ledger.foreign`, `ledger.records`, `profiler.traces.file`.
Start reading in `launches`, where a launch meets its kernel, then `link`.
"""
