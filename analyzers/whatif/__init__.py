"""What a change to recorded steps would save: edits of their event graph, replayed.

It may import `analyzers.context`, `analyzers.findings.stragglers`, `analyzers.recorded`, `analyzers.replay`,
`analyzers.shared`, `ledger`, `ledger.answers`, `ledger.records`.
Start reading in `draft`.
"""
