"""Predicts the saving of a change to recorded steps: edits of their event graph, replayed.

It may import `analyzers.context`, `analyzers.recorded`, `analyzers.replay.events`, `analyzers.roofline`,
`analyzers.shared`, `analyzers.two_runs`, `analyzers.whatif.edits`, `ledger`, `ledger.answers`,
`ledger.records`, `ledger.report`, `ledger.tables`, `ledger.words`.
Start reading in `answer`: `edits` holds the changes to a step, `replayed` has saving and band, `doubt` what
the band is made of.
"""
