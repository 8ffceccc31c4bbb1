"""Two runs of several steps each: what changed, what is noise, and why.

It may import `analyzers.context`, `analyzers.shared`, `analyzers.two_runs`, `ledger`, `ledger.answers`,
`ledger.records`, `ledger.tables`, `ledger.words`.
Start reading in `compare`.
"""
