"""Measures what collectives cost on the process groups of a job, and writes it as a fabric.

It may import `ledger`, `ledger.measured`, `ledger.records`.
Start reading in `sweep`.
"""
