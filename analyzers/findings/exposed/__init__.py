"""Communication that nothing hides, and collectives that wait for each other.

It may import `analyzers.bounds`, `analyzers.context`, `analyzers.findings.habits`,
`analyzers.findings.needless`, `analyzers.findings.stages`, `analyzers.findings.stragglers`,
`analyzers.shared`, `ledger`, `ledger.records`, `ledger.words`.
Start reading in `exposed_communication`.
"""
