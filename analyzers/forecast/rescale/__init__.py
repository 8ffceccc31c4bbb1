"""A measured run re-priced for other numbers of GPUs, other fabrics and other GPUs.

Start reading in `other_sizes`.

It may import `analyzers.forecast.compute`, `analyzers.forecast.plan`, `analyzers.replay.events`,
`analyzers.roofline`, `ledger`, `ledger.answers`, `ledger.records`, `ledger.words`.
"""
