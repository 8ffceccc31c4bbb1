"""The groups of a plan on its network, and the collectives that blocks wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shardtoll.analyzers.forecast.plan.block import Share
from shardtoll.analyzers.forecast.plan.constants import Constants
from shardtoll.analyzers.forecast.plan.network import Network, Timed, place_group
from shardtoll.analyzers.forecast.plan.passes import EMPTY, Phase
from shardtoll.analyzers.forecast.plan.traits import Traits
from shardtoll.analyzers.roofline import Placement
from shardtoll.ledger import FabricError
from shardtoll.ledger.answers.training_plan import TrainingPlan


@dataclass(frozen=True)
class Groups:
    """Ranks count tensor-parallel first, then context, data and pipeline: as Megatron, nanotron and
    torchtitan do."""

    network: Network
    per_node: int
    tensor: Placement
    context: Placement
    data: Placement
    """Ranks with equal parameters: data and context parallel together."""
    shards: Placement
    """Those of them that share one copy of the state: all, or a part (HSDP)."""
    copies: Placement
    """Ranks that hold the same shard in different copies (HSDP)."""
    expert: Placement
    pair: Placement
    """Two neighbours of the pipeline."""

    def time(
        self, op: str, message_bytes: float, placement: Placement, constants: Constants, *scopes: str
    ) -> Timed:
        """Return the time of one collective, with its launch; FabricError if the network does not know it."""
        timed = self.network.time(op, message_bytes, placement)
        if timed is None:
            raise FabricError(
                f"fabric {self.network.name} has no price of {op} over {placement.nodes} nodes",
                "name another with --fabric",
            )
        if not timed.expected_ns:
            return timed
        factor = constants.get("net" if placement.spans_nodes else "near", *scopes)
        return Timed(timed.expected_ns * factor, timed.low_ns * factor, timed.high_ns * factor)

    def block_collectives(
        self,
        plan: TrainingPlan,
        share: Share,
        traits: Traits,
        constants: Constants,
        direction: Literal["forward", "backward"],
    ) -> Phase:
        """Return what one block's collectives cost one pass, by cause."""
        scopes = (f"{traits.name}.{plan.gpu}", traits.name)
        width = plan.width_bytes
        hidden = width * share.tokens * plan.model.hidden
        exposed: dict[str, float] = {}
        calls = 0
        if share.tp > 1:
            # A reduce-scatter and an all-gather take what one all-reduce takes.
            one = self.time("all_reduce", hidden, self.tensor, constants, *scopes).expected_ns
            part = 1.0
            if traits.overlaps_tensor:
                part = constants.get("tensor_exposed", *scopes)
            elif plan.layout.async_tp:
                # A piece for each rank: nothing hides the first, and the others slow the matmuls down.
                contention = constants.get("contention", *scopes)
                part = (1 + (share.tp - 1) * contention) / share.tp
            exposed["tensor"] = 2 * one * part
            calls += 4 if share.sequence_parallel else 2
        if share.cp > 1:
            keys = (
                width
                * share.micro_batch
                * share.sequence
                * plan.model.head_width
                * 2
                * plan.model.kv_heads
                / share.tp
            )
            one = self.time("all_gather", keys, self.context, constants, *scopes).expected_ns
            one *= 2 if direction == "backward" else 1
            exposed["context"] = one * constants.get("context_exposed", *scopes)
            calls += share.cp - 1
        if share.ep > 1 and plan.model.experts > 1:
            rows = share.tokens / share.tp * share.expert_tp * plan.model.topk
            one = self.time(
                "all_to_all", width * rows * plan.model.hidden, self.expert, constants, *scopes
            ).expected_ns
            exposed["expert"] = 2 * one * constants.get("expert_exposed", *scopes)
            calls += 2
        host_us = calls * _skew(share.tp) * constants.get("call_us", *scopes)
        if share.tp > 1 and plan.layout.pp > 1 and plan.layout.world_size > self.per_node:
            # Measured under nanotron: with stages on several nodes each of these calls costs the host more.
            host_us += calls * share.tp * constants.get("staged_us", *scopes)
        return Phase(0.0, 1000 * host_us, exposed)

    def end_collectives(
        self, plan: TrainingPlan, share: Share, traits: Traits, constants: Constants
    ) -> tuple[Phase, Phase]:
        """Return what cutting the vocabulary over the tensor-parallel group adds to a micro-batch.

        First the sum of the embeddings that each rank looked up, which takes as long as that of the head's
        input gradients. Then the loss: maximum, target and sum of the logits, one number a token each.
        """
        if share.tp == 1:
            return EMPTY, EMPTY
        scopes = (f"{traits.name}.{plan.gpu}", traits.name)
        hidden = plan.width_bytes * share.tokens * plan.model.hidden
        summed = self.time("all_reduce", hidden, self.tensor, constants, *scopes).expected_ns
        loss = 3 * self.time("all_reduce", 4.0 * share.tokens, self.tensor, constants, *scopes).expected_ns
        call_ns = 1000 * _skew(share.tp) * constants.get("call_us", *scopes)
        return Phase(0.0, call_ns, {"tensor": summed}), Phase(0.0, 3 * call_ns, {"tensor": loss})

    def beyond_nodes_ns(self, exposed_ns: Mapping[str, float]) -> float:
        """Return how much of the exposed time, by cause, is of blocks' collectives that leave a node."""
        places = {"tensor": self.tensor, "context": self.context, "expert": self.expert}
        return sum(exposed_ns.get(cause, 0.0) for cause, place in places.items() if place.spans_nodes)


def _skew(tp: int) -> float:
    """Return how much more host time a collective takes in a tensor-parallel group of that size than in one
    of four.

    Each collective waits for the slowest of its hosts, so a host-bound block loses more in larger groups.
    """
    return (tp / 4) ** 2 if tp > 1 else 1.0


def groups_of(plan: TrainingPlan, network: Network) -> Groups:
    """Return where the plan's groups stand."""
    layout = plan.layout
    per_node = network.ranks_per_node or plan.gpus_per_node
    inner = layout.tp * layout.cp
    expert_stride = (
        1 if layout.ep > layout.dp * layout.cp or "bridge" in plan.framework.casefold() else layout.tp
    )
    stage = inner * layout.dp
    shard = layout.shard_size or layout.dp
    return Groups(
        network,
        per_node,
        place_group(layout.tp, 1, per_node),
        place_group(layout.cp, layout.tp, per_node),
        place_group(layout.dp * layout.cp, layout.tp, per_node),
        place_group(shard * layout.cp, layout.tp, per_node),
        place_group(layout.dp // shard, inner * shard, per_node),
        place_group(layout.ep, expert_stride, per_node),
        place_group(2, stage, per_node) if layout.pp > 1 else place_group(1, 1, per_node),
    )
