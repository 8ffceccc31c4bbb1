"""Replicas that do not agree: gradients, parameters, buffers.

It may import `analyzers.context`, `analyzers.findings.needless`, `analyzers.shared`, `ledger`,
`ledger.records`, `ledger.words`.
Start reading in `replicas`.
"""
