"""Lower bounds of a step by hardware and fabric: the roofline of steps and operators.

It may import `analyzers.context`, `analyzers.roofline`, `analyzers.shared`, `ledger.answers`,
`ledger.records`, `ledger.words`.
Start reading in `step_roofline`.
"""
