"""One SQLite export of Nsight Systems into the columns that traces of torch.profiler fill.

It may import `ledger.records`, `profiler.traces.collectives`, `profiler.traces.file`.
Start reading in `read_nsys`.
"""
