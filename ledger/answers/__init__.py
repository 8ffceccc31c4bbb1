"""What analyses answer beside findings: budgets, comparisons, verifications, rooflines, HTA.

It may import `ledger.foreign`, `ledger.measured`, `ledger.records`.
Start reading in `comparison`.
"""
