"""The price of a dry run: recorded operators and collectives on the streams that run them, and their memory.

It may import `analyzers.forecast.compute`, `analyzers.forecast.memory`, `analyzers.forecast.plan`,
`analyzers.replay.events`, `analyzers.roofline`, `analyzers.shared`, `ledger`, `ledger.answers`,
`ledger.records`, `ledger.report`, `ledger.tables`.
Start reading in `priced`.
"""

from shardtoll.analyzers.forecast.dry.priced import price_dry

__all__ = ["price_dry"]
