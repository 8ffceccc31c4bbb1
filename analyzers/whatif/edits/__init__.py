"""Edits of recorded steps: what a fix or another question takes out, shortens, joins or moves.

It may import `analyzers.context`, `analyzers.findings.needless`, `analyzers.findings.origins`,
`analyzers.findings.stages`, `analyzers.findings.stragglers`, `analyzers.forecast.compute`,
`analyzers.forecast.plan`, `analyzers.pipelines`, `analyzers.recorded`, `analyzers.replay.events`,
`analyzers.replay.points`, `analyzers.roofline`, `analyzers.roofline.model`, `analyzers.shared`, `ledger`,
`ledger.records`, `ledger.words`.
Start reading in `remedies` (the edit of each kind of finding) and `draft` (what an edit writes to).
"""
