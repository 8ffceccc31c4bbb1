"""Pipelines as the messages between ranks show them: their ranks, micro-batches and stages.

It may import `analyzers.context`, `analyzers.shared`, `ledger`, `ledger.records`.
Start reading in `pipeline_shape`.
"""
