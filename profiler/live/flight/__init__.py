"""The flight file of a rank while its audit is open: what it is in now, for who asks when the job hangs.

It may import `ledger.disk`, `ledger.records`, `profiler.live.cause`.
Start reading in `flight`.
"""
