"""Arrow tables of the records, the ledger that holds them, and their forms as JSON.

It may import `ledger.records`.
Start reading in `tables`.
"""
