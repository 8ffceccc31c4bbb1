"""Holistic Trace Analysis, on request.

It may import `ledger.answers`.
Start reading in `hta`.
"""
