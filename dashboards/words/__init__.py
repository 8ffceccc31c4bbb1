"""How numbers, names and kinds are written, everywhere alike.

It may import `ledger`.
Start reading in `text`.
"""
