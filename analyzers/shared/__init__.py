"""Small helpers that analyses share.

It may import `ledger`, `ledger.records`.
Start reading in `tally`.
"""
