"""Who is stuck, where, since when and why: flights of ranks in, a diagnosis out. Pure.

It may import `ledger.answers`, `ledger.records`, `ledger.words`.
Start reading in `diagnose`.
"""
