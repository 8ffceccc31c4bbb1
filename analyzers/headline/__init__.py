"""The sentence `Report.headline`: whether the network, a rank, a stage or the host is at fault.

It may import `analyzers.context`, `analyzers.findings.duplicates`, `analyzers.findings.replicas`,
`analyzers.findings.stages`, `analyzers.findings.stragglers`, `analyzers.findings.trust`, `analyzers.shared`,
`ledger`, `ledger.answers`, `ledger.records`, `ledger.words`.
Start reading in `sentence`.
"""
