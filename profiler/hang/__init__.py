"""Reads what others leave of a job that hung: dumps of torch's flight recorder, and logs with its timeouts.

It may import `ledger.disk`, `ledger.records`. No torch.
Start reading in `hang_files`.

It may import `ledger.disk`, `ledger.foreign`, `ledger.records`.
"""
