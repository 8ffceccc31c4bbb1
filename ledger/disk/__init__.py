"""A run on disk: the folder, its journals, packing for other ranks, following a run being written.

It may import `ledger.foreign`, `ledger.records`, `ledger.tables`.
Start reading in `run_writer`, then `run_reader`.
"""
