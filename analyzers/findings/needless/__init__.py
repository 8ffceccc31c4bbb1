"""Collectives that need not be, or could be fewer or narrower.

It may import `analyzers.context`, `analyzers.roofline`, `analyzers.shared`, `ledger`, `ledger.records`,
`ledger.words`.
Start reading in `needless`.
"""
