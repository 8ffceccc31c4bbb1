"""Answers other than findings: of budgets, comparisons, verifications, what-ifs, hangs, plans, advice.

It may import `ledger.foreign`, `ledger.measured`, `ledger.records`.
Start reading in `comparison`.
"""
