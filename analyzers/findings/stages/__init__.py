"""Stages of a pipeline that stand idle or compute more than the others.

It may import `analyzers.context`, `analyzers.findings.origins`, `analyzers.findings.stalls`,
`analyzers.pipelines`, `analyzers.shared`, `ledger`, `ledger.answers`, `ledger.words`.
Start reading in `pipeline_bubble`.
"""
