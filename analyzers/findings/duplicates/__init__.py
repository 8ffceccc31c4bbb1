"""Work or data done twice.

It may import `analyzers.context`, `analyzers.findings.replicas`, `analyzers.findings.values`,
`analyzers.shared`, `ledger`, `ledger.records`, `ledger.words`.
Start reading in `duplicated_compute`.
"""
