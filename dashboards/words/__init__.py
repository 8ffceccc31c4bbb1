"""How numbers, names and kinds are written, everywhere alike.

It may import `ledger`, `ledger.records`.
Start reading in `text`.
"""
