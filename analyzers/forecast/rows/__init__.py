"""Published rows as plans: what they state, what is known of their models, and what they measured.

Start reading in `parse`.

It may import `analyzers.forecast.compute`, `analyzers.forecast.memory`, `analyzers.forecast.plan`,
`analyzers.roofline`, `ledger`, `ledger.answers`.
"""
