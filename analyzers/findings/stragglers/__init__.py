"""Ranks that come late: where lateness begins, why, and what the others' waiting costs.

It may import `analyzers.context`, `analyzers.findings.habits`, `analyzers.findings.origins`,
`analyzers.shared`, `ledger`, `ledger.words`.
Start reading in `straggler`.
"""
