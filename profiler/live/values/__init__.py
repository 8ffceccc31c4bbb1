"""What tensors held: fingerprints, sketches, FLOPs and bytes, and what became of results.

It may import `ledger.records`, `profiler.live.cause`.
Start reading in `values`.
"""
