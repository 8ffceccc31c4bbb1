"""One rank's columns into its ledger: phases, causes, the split of its time, stalls.

It may import `ledger.records`, `ledger.tables`, `profiler.traces.collectives`, `profiler.traces.file`.
Start reading in `rank`.
"""
