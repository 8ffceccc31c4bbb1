"""The sentence `Report.headline`: who is at fault, how much of the step it costs, and what to do.

Its facts too: bytes of operators (`op_traffic`), which values were compared (`sound_checks`, `value_checks`).

It may import `analyzers.context`, `analyzers.findings.duplicates`, `analyzers.findings.origins`,
`analyzers.findings.replicas`, `analyzers.findings.stages`, `analyzers.findings.stragglers`,
`analyzers.findings.trust`, `analyzers.pipelines`, `analyzers.shared`, `ledger`, `ledger.answers`,
`ledger.records`, `ledger.words`.
Start reading in `sentence`.
"""
