"""The engine of every comparison of two runs: which steps, which findings are the same, how sure a change is.

`compare` and `verify` stand on it.
It may import `ledger`, `ledger.answers`, `ledger.records`, `ledger.tables`.
Start reading in `pair`.
"""
