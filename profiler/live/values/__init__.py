"""Contents of tensors: fingerprints, sketches, FLOPs and bytes, and the use of results.

It may import `ledger.records`, `profiler.live.cause`.
Start reading in `values`.
"""
