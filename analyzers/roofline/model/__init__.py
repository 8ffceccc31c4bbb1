"""The cost of one collective on a fabric: algorithms, protocols, bands.

It may import `analyzers.roofline.machines`, `ledger`, `ledger.measured`.
Start reading in `cost`.
"""
