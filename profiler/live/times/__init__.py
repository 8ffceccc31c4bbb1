"""When things happened: clocks, device events, gloo's spans, waits, loading, and torch's patched methods.

It may import `ledger.records`, `profiler.live.cause`.
Start reading in `clock`.
"""
