"""A whole training step's time: a plan's operators, collectives and schedule, put together by the engine.

Start reading in `price`.

It may import `analyzers.forecast.compute`, `analyzers.forecast.plan.graphs`, `analyzers.roofline`,
`analyzers.shared`, `ledger`, `ledger.answers`.
"""

from shardtoll.analyzers.forecast.plan.constants import Constants
from shardtoll.analyzers.forecast.plan.network import FabricNetwork, MeasuredNetwork, Network
from shardtoll.analyzers.forecast.plan.price import price_plan

__all__ = ["Constants", "FabricNetwork", "MeasuredNetwork", "Network", "price_plan"]
