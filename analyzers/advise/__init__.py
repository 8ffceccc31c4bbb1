"""Which layout, which lever, how often a checkpoint: answered from memory and price of many plans.

Start reading in `advise`; `layouts` says what is legal, `decision_path` what decides.

It may import `analyzers.forecast.compute`, `analyzers.forecast.memory`, `analyzers.forecast.plan`,
`analyzers.forecast.rows`, `analyzers.roofline`, `analyzers.shared`, `ledger`, `ledger.answers`,
`ledger.words`.
"""
