"""What a rank's events say together: its steps, its groups, and which collective each kernel carried out.

It may import `ledger.records`, `profiler.traces.file`.
Start reading in `link`.
"""
