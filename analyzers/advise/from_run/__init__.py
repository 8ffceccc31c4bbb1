"""A question of advice from a recorded step: the model's shape, the batch and the layout that ran.

Start reading in `run_question`.

It may import `analyzers.forecast.compute`, `analyzers.shared`, `ledger`, `ledger.answers`, `ledger.records`.
"""
