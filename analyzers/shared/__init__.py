"""Small helpers that analyses share.

It may import `ledger`, `ledger.answers`, `ledger.records`.
Start reading in `tally`.
"""
