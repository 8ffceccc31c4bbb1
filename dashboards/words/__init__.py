"""How names, kinds and foreign text are written; numbers are in `ledger.words`.

It may import `ledger`, `ledger.records`.
Start reading in `text`.
"""
