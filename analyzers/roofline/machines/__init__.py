"""Machines as data: fabrics, links, accelerators, and which one a run used.

It may import `ledger`, `ledger.foreign`, `ledger.measured`, `ledger.records`.
Start reading in `fabric`.
"""
