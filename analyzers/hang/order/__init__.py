"""Places at which ranks part from one order of calls, and which side is the odd one. Pure.

It may import `analyzers.hang.standing`, `ledger.answers`, `ledger.records`.
Start reading in `divergence`.
"""
