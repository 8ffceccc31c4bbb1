"""Whether a change did what was predicted.

It may import `analyzers.compare`, `analyzers.context`, `analyzers.findings.replicas`,
`analyzers.findings.unsynced`, `analyzers.roofline`, `analyzers.shared`, `analyzers.two_runs`, `ledger`,
`ledger.answers`, `ledger.records`, `ledger.report`, `ledger.words`.
Start reading in `verify`.
"""
