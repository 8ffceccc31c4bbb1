"""The report: everything found about one run, in memory and as JSON; the score of verified fixes.

It may import `ledger.answers`, `ledger.foreign`, `ledger.records`, `ledger.tables`, `ledger.words`.
Start reading in `report`.
"""
