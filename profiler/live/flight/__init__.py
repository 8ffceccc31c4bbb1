"""The flight file of a rank while its audit is open: its present collective, for readers when the job hangs.

It may import `ledger.disk`, `ledger.records`, `profiler.live.cause`.
Start reading in `flight`.
"""
