"""Holding a run to a budget, and the budget that a run just keeps.

It may import `analyzers.shared`, `ledger`, `ledger.answers`, `ledger.records`, `ledger.report`,
`ledger.tables`, `ledger.words`.
Start reading in `against_budget`.
"""
