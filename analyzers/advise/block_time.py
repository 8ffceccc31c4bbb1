"""Time of one block, forward and backward, for ordering layouts before they are priced whole."""

from __future__ import annotations

from shardtoll.analyzers.forecast.plan import Network
from shardtoll.analyzers.forecast.plan.constants import fitted
from shardtoll.analyzers.forecast.plan.groups import groups_of
from shardtoll.analyzers.forecast.plan.phases import phases_of
from shardtoll.analyzers.forecast.plan.traits import traits_of
from shardtoll.ledger.answers.training_plan import TrainingPlan


class BlockTimes:
    """Times of one block on a network, kept by what they depend on."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._times: dict[object, float] = {}

    def time_ns(self, plan: TrainingPlan) -> float:
        """One block's forward and backward for one micro-batch, with the collectives that it waits for."""
        layout = plan.layout
        key = (
            plan.model,
            plan.precision,
            layout.tp,
            layout.cp,
            layout.ep,
            layout.dp if layout.ep > 1 else None,
            layout.micro_batch,
            layout.checkpointing,
        )
        if key not in self._times:
            groups = groups_of(plan, self._network)
            phases = phases_of(plan, traits_of(plan.framework), groups, fitted())
            self._times[key] = phases.block_forward.time_ns + phases.block_backward.time_ns
        return self._times[key]
