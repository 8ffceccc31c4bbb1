"""Commands below `budget`, `fabrics` and `forecast`.

It may import `analyzers.budget`, `analyzers.forecast.compute`, `analyzers.forecast.dry`,
`analyzers.forecast.plan`, `analyzers.forecast.rescale`, `analyzers.forecast.rows`, `analyzers.roofline`,
`analyzers.roofline.evaluate`, `analyzers.roofline.machines`, `cli.inputs`, `cli.jobs`, `dashboards.fabrics`,
`dashboards.words`, `ledger`, `ledger.answers`, `ledger.words`.
Start reading in `fabrics_eval`.
"""
