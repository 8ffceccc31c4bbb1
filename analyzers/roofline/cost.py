"""What one collective costs on a fabric: its expected time, a band, the floor and the speed of light."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

from shardtoll.analyzers.roofline.fabric import Fabric
from shardtoll.analyzers.roofline.place import Placement
from shardtoll.analyzers.roofline.pricing import Pricing

Basis = Literal["measured", "transferred", "model"]
"""measured: this op was timed on such a group. transferred: others were, and the model is fitted to them.
model: published figures of the links and constants of the library only."""

_KEPT: Final = 16
"""Fabrics whose candidates are kept ready; a report uses one or two, an evaluation one a sweep."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one collective."""

    time_ns: int
    """Expected time of a tuned library on this fabric, rounded up."""
    latency_ns: int
    """The part of it that does not shrink with the message, rounded down."""
    algorithm: str
    """A name in `model.ALGORITHMS`, or `none` where nothing is sent."""
    steps: int
    """Hops that follow one another."""
    wire_bytes: int
    """Bytes one rank must send by that algorithm."""
    low_ns: int
    """Nine of ten sound runs take at least this, and at most `high_ns`."""
    high_ns: int
    floor_ns: int
    """Least time a tuned library reaches: a low quantile of what was measured, else the fastest algorithm's
    time, which is `time_ns` unless this version of the library is known to choose another."""
    light_ns: int
    """Speed of light: what the links' rates allow, whatever the library; at most `low_ns`."""
    protocol: str = ""
    """NCCL's `LL`, `LL128` or `Simple`; empty where a library has none."""
    near_bytes: int = 0
    """Bytes one rank sends to ranks of its host: the mean of a host's ranks, rounded up."""
    net_bytes: int = 0
    """Bytes one rank sends to other hosts: the mean of a host's ranks, rounded up."""
    basis: Basis = "model"
    guesses: tuple[str, ...] = ()
    """Names of the numbers used that are guesses."""

    @property
    def latency_dominated(self) -> bool:
        """Whether at least half of the expected time is latency."""
        return 2 * self.latency_ns >= self.time_ns


_pricings: OrderedDict[int, Pricing] = OrderedDict()


def pricing_of(fabric: Fabric) -> Pricing:
    """Return the fabric's candidates and fits, made once for each fabric in use."""
    found = _pricings.get(id(fabric))
    # The pricing holds the fabric, so that another one cannot have its id while it is kept.
    if found is None:
        found = _pricings[id(fabric)] = Pricing(fabric)
        if len(_pricings) > _KEPT:
            _pricings.popitem(last=False)
    else:
        _pricings.move_to_end(id(fabric))
    return found


def collective_cost(fabric: Fabric, op: str, message_bytes: int | None, at: Placement | None) -> Cost | None:
    """Return the cost of `op` with `message_bytes` (as nccl-tests counts them) on the fabric.

    A barrier costs what an all_reduce of nothing costs. None where the op, the message size, the
    placement or a link that is needed is unknown; a group of one rank costs nothing.
    """
    if fabric.intra is None:
        return None
    return cost_by(pricing_of(fabric), op, message_bytes, at)


def cost_by(pricing: Pricing, op: str, message_bytes: int | None, at: Placement | None) -> Cost | None:
    """Return the same by a pricing of one's own, as one with other constants of the library."""
    if at is None or pricing.fabric.intra is None or (op != "barrier" and message_bytes is None):
        return None
    if not pricing.knows(op, at):
        return None
    if at.ranks == 1:
        return Cost(0, 0, "none", 0, 0, 0, 0, 0, 0)
    size = 0 if op == "barrier" or message_bytes is None else message_bytes
    best, price = pricing.price(op, size, at)
    light_ns = pricing.light_ns_per_byte(op, at) * size
    # Where published rates and measured times disagree, the measured ones are right; a band measures nothing.
    light_ns = min(light_ns, price.floor_ns, price.low_ns if price.basis == "measured" else price.time_ns)
    return Cost(
        time_ns=math.ceil(price.time_ns),
        latency_ns=math.floor(min(price.latency_ns, price.time_ns)),
        algorithm=best.algorithm,
        steps=best.steps,
        wire_bytes=best.wire_bytes(size),
        low_ns=math.floor(max(price.low_ns, light_ns)),
        high_ns=math.ceil(price.high_ns),
        floor_ns=math.ceil(price.floor_ns),
        light_ns=math.floor(light_ns),
        protocol=best.protocol,
        near_bytes=best.near_bytes(size),
        net_bytes=best.net_bytes(size),
        basis=price.basis,
        guesses=() if price.basis == "measured" else pricing.guesses(at),
    )
