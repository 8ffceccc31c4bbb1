"""Time that a rank loses by itself: to data, its host, copies and recomputing.

It may import `analyzers.context`, `analyzers.findings.stragglers`, `analyzers.shared`, `ledger`,
`ledger.records`, `ledger.words`.
Start reading in `stalled`.
"""
