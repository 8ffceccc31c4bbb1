"""The least time a fabric allows for one collective: the best of the algorithms that can do it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from shardtoll.analyzers.roofline.direct import direct
from shardtoll.analyzers.roofline.fabric import Fabric, Link
from shardtoll.analyzers.roofline.place import Placement
from shardtoll.analyzers.roofline.ring import pairwise, ring
from shardtoll.analyzers.roofline.terms import Terms
from shardtoll.analyzers.roofline.tree import tree

Model = Callable[[str, int, Placement, Link, Link | None], Terms | None]

MODELS: Final[tuple[Model, ...]] = (ring, tree, pairwise, direct)
"""One idea a file; each says None for an op it does not do. The fastest answer is the floor."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The floor of one collective."""

    time_ns: int
    """Least time, rounded up."""
    latency_ns: int
    """The part of it that does not shrink with the message, rounded down."""
    algorithm: str
    """`ring`, `chain`, `tree`, `pairwise`, `direct`, or `none` where nothing is sent."""
    steps: int
    wire_bytes: int
    """Bytes one rank must send by that algorithm."""

    low_ns: int = 0
    high_ns: int = 0
    floor_ns: int = 0
    light_ns: int = 0
    protocol: str = ""
    near_bytes: int = 0
    net_bytes: int = 0
    basis: Literal["measured", "transferred", "model"] = "model"
    guesses: tuple[str, ...] = ()

    @property
    def latency_dominated(self) -> bool:
        """Whether at least half of the least time is latency."""
        return 2 * self.latency_ns >= self.time_ns


def collective_cost(fabric: Fabric, op: str, message_bytes: int | None, at: Placement | None) -> Cost | None:
    """Return the least cost of `op` with `message_bytes` (as nccl-tests counts them) on the fabric.

    A barrier costs what an all_reduce of nothing costs. None where the op, the message size, the
    placement or a link that is needed is unknown; a group of one rank costs nothing.
    """
    if op == "barrier":
        op, message_bytes = "all_reduce", 0
    if message_bytes is None or at is None or fabric.intra is None:
        return None
    answers = [model(op, message_bytes, at, fabric.intra, fabric.inter) for model in MODELS]
    known = [terms for terms in answers if terms is not None]
    if not known:
        return None
    if at.ranks == 1:
        return Cost(0, 0, "none", 0, 0)
    best = min(known, key=lambda terms: terms.time_ns)
    return Cost(
        time_ns=math.ceil(best.time_ns),
        latency_ns=math.floor(best.latency_ns),
        algorithm=best.algorithm,
        steps=best.steps,
        wire_bytes=best.wire_bytes,
        low_ns=math.floor(0.8 * best.time_ns),
        high_ns=math.ceil(1.3 * best.time_ns),
        floor_ns=math.ceil(best.time_ns),
        light_ns=math.floor(0.75 * best.transfer_ns),
        near_bytes=0 if at.spans_nodes else best.wire_bytes,
        net_bytes=best.wire_bytes if at.spans_nodes else 0,
        basis="measured" if fabric.measured else "model",
        guesses=fabric.guesses,
    )
