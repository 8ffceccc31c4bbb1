"""One trace file into columns: streamed, decoded, checked, in bounded memory.

It may import `ledger.records`.
Start reading in `read`.
"""
