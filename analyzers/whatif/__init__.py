"""Predicts the saving of a change to recorded steps: edits of their event graph, replayed.

It may import `analyzers.context`, `analyzers.findings.needless`, `analyzers.findings.origins`,
`analyzers.findings.stages`, `analyzers.findings.stragglers`, `analyzers.forecast.compute`,
`analyzers.forecast.plan`, `analyzers.pipelines`, `analyzers.recorded`, `analyzers.replay`,
`analyzers.roofline`, `analyzers.roofline.model`, `analyzers.shared`, `analyzers.two_runs`, `ledger`,
`ledger.answers`, `ledger.records`, `ledger.report`, `ledger.tables`, `ledger.words`.
Start reading in `answer`: `asked` and `remedies` make the edits, `draft` applies them, `replayed` has saving
and band, `doubt` what the band is made of.
"""
