"""Reads what others leave of a job that hung, without torch: flight recorder dumps, logs with timeouts.

It may import `ledger.disk`, `ledger.foreign`, `ledger.records`.
Start reading in `hang_files`.
"""
