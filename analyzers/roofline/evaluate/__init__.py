"""The model against measured sweeps.

It may import `analyzers.roofline.machines`, `analyzers.roofline.model`, `ledger`, `ledger.measured`,
`ledger.records`.
Start reading in `evaluate`.
"""
