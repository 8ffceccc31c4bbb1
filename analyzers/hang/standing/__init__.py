"""Where each rank of a hung job stands: flights in; calls, waits and who came to them out. Pure.

It may import `ledger.answers`, `ledger.records`.
Start reading in `job`.
"""
