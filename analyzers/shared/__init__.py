"""Small helpers that analyses share.

It may import `ledger`, `ledger.answers`, `ledger.records`, `ledger.tables`.
Start reading in `tally`.
"""
