"""One rank's columns into its ledger: steps, phases, causes, links, stalls.

It may import `ledger.records`, `ledger.tables`, `profiler.traces.file`.
Start reading in `rank`.
"""
