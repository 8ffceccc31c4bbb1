"""Parameters that no reduction carries: by their gradients' values, or by the records' structure alone.

It may import `analyzers.context`, `analyzers.findings.replicas`, `analyzers.shared`, `ledger`,
`ledger.records`, `ledger.words`.
Start reading in `unsynced_parameter` (values), then `unreduced` (structure).
"""
