"""What hardware and fabric allow a step: the roofline of steps and operators.

It may import `analyzers.context`, `analyzers.roofline`, `analyzers.shared`, `ledger.answers`,
`ledger.records`, `ledger.words`.
Start reading in `step_roofline`.
"""
