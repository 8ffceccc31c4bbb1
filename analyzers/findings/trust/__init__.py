"""How far the record itself can be trusted.

It may import `analyzers.bounds`, `analyzers.context`, `analyzers.findings.stragglers`, `analyzers.shared`,
`ledger`, `ledger.answers`, `ledger.words`.
Start reading in `unmatched_collectives`.
"""
