"""Time in which ranks wait: for each other, data, the host, a pipeline.

It may import `analyzers.bounds`, `analyzers.context`, `analyzers.findings.habits`,
`analyzers.findings.needless`, `analyzers.replay`, `analyzers.shared`, `ledger`, `ledger.answers`,
`ledger.records`, `ledger.words`.
Start reading in `exposed_communication`.
"""
