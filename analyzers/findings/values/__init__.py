"""Values that are wrong in themselves: NaN and infinity, parts that should differ and do not.

It may import `analyzers.context`, `analyzers.findings.replicas`, `analyzers.shared`, `ledger`,
`ledger.records`, `ledger.words`.
Start reading in `non_finite`.
"""
