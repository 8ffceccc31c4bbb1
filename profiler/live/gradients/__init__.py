"""`check_gradients`: every gradient against the one that a single device computes.

It may import `ledger`, `profiler.live.cause`, `profiler.live.session`.
Start reading in `gradients`.
"""
