"""Answers of analyses other than findings: budgets, comparisons, verifications, rooflines, HTA.

It may import `ledger.foreign`, `ledger.measured`, `ledger.records`.
Start reading in `comparison`.
"""
