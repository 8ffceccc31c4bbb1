"""The place of each rank of a hung job: flights in; calls, waits and who came to them out. Pure.

It may import `ledger.answers`, `ledger.records`.
Start reading in `job`.
"""
