"""Recorded steps as event graphs: of traces from their events, of other runs from their collectives.

It may import `analyzers.context`, `analyzers.replay.events`, `analyzers.replay.points`, `analyzers.shared`,
`ledger.records`.
Start reading in `recorded`.
"""
