"""Transfers slower than the fabric allows, and why.

It may import `analyzers.context`, `analyzers.roofline`, `analyzers.roofline.model`, `analyzers.shared`,
`ledger`, `ledger.records`, `ledger.words`.
Start reading in `below_roofline`.
"""
