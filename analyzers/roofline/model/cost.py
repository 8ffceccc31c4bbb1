"""The cost of one collective on a fabric: its expected time, a band, the floor and the speed of light."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardtoll.analyzers.roofline.machines.fabric import Fabric
from shardtoll.analyzers.roofline.model.candidate import Candidate
from shardtoll.analyzers.roofline.model.place import Placement
from shardtoll.analyzers.roofline.model.pricing import Basis, Price, Pricing

_KEPT: Final = 16
"""Fabrics whose candidates are kept ready; a report uses one or two, an evaluation one a sweep."""

_OF_LATENCY: Final = (
    *("base_us", "near_hop_us", "net_hop_us", "plugin_us", "plugin_told_us"),
    *("latency_factor", "net_factor", "few_channels_bytes"),
)
"""Constants of a library that say nothing of large messages."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one collective."""

    time_ns: int
    """Expected time of a tuned library on this fabric, rounded up: reports call it `expected_ns`."""
    latency_ns: int
    """The part of it that does not shrink with the message, rounded down."""
    algorithm: str
    """A name in `model.ALGORITHMS`, or `none` if nothing is sent."""
    steps: int
    """Hops that follow one another."""
    wire_bytes: int
    """Bytes one rank must send by that algorithm."""
    low_ns: int
    """Nine of ten sound runs take at least this, and at most `high_ns`."""
    high_ns: int
    floor_ns: int
    """At most one of twenty sound runs takes less: the low end of the band. It is by the fastest algorithm if
    this version of the library is known to choose another."""
    light_ns: int
    """Speed of light: what the links' rates allow, whatever the library; at most `floor_ns`."""
    protocol: str = ""
    """NCCL's `LL`, `LL128` or `Simple`; empty if the library has no protocols."""
    near_bytes: int = 0
    """Bytes one rank sends to ranks of its host: the mean of a host's ranks, rounded up."""
    net_bytes: int = 0
    """Bytes one rank sends to other hosts: the mean of a host's ranks, rounded up."""
    basis: Basis = "model"
    guesses: tuple[str, ...] = ()
    """Names of the numbers used that are guesses."""

    @property
    def guessed_rate(self) -> bool:
        """Whether one of the guesses bears on more than latency."""
        return any(name.split(".")[0].split()[-1] not in _OF_LATENCY for name in self.guesses)


_pricings: OrderedDict[int, Pricing] = OrderedDict()


def pricing_of(fabric: Fabric) -> Pricing:
    """Return the fabric's candidates and fits, made once for each fabric in use."""
    pricing = _pricings.get(id(fabric))
    # The pricing holds the fabric, so that another one cannot have its id while it is kept.
    if pricing is None:
        pricing = _pricings[id(fabric)] = Pricing(fabric)
        if len(_pricings) > _KEPT:
            _pricings.popitem(last=False)
    else:
        _pricings.move_to_end(id(fabric))
    return pricing


def collective_cost(
    fabric: Fabric, op: str, message_bytes: int | None, placement: Placement | None
) -> Cost | None:
    """Return the cost of `op` with `message_bytes` (as nccl-tests counts them) on the fabric.

    A barrier costs what an all_reduce of nothing costs. None if the op, the message size, the placement or a
    needed link is unknown; a group of one rank costs nothing.
    """
    if fabric.intra is None:
        return None
    return cost_by(pricing_of(fabric), op, message_bytes, placement)


def collective_costs(
    fabric: Fabric, op: str, sizes: Sequence[int | None], placement: Placement | None
) -> list[Cost | None]:
    """Return the same for many message sizes at once, which takes little longer than one."""
    if fabric.intra is None:
        return [None] * len(sizes)
    return costs_by(pricing_of(fabric), op, sizes, placement)


def cost_by(pricing: Pricing, op: str, message_bytes: int | None, placement: Placement | None) -> Cost | None:
    """Return the same by a pricing of one's own, as one with other constants of the library."""
    return costs_by(pricing, op, (message_bytes,), placement)[0]


def costs_by(
    pricing: Pricing, op: str, sizes: Sequence[int | None], placement: Placement | None
) -> list[Cost | None]:
    """Return the same for many message sizes."""
    if placement is None or pricing.fabric.intra is None or not pricing.knows(op, placement):
        return [None] * len(sizes)
    asked = [0] * len(sizes) if op == "barrier" else [size for size in sizes if size is not None]
    if placement.ranks == 1:
        costs = [Cost(0, 0, "none", 0, 0, 0, 0, 0, 0)] * len(asked)
    elif asked:
        guesses: dict[int, tuple[str, ...]] = {}
        costs = []
        for size, (best, price) in zip(asked, pricing.prices(op, asked, placement), strict=True):
            # Many sizes share few candidates. They are keyed by identity, as hashing one takes longer than
            # the rest.
            if id(best) not in guesses:
                guesses[id(best)] = pricing.guesses(placement, best)
            costs.append(_cost(size, best, price, guesses[id(best)]))
    else:
        costs = []
    in_turn = iter(costs)
    return [None if size is None and op != "barrier" else next(in_turn) for size in sizes]


def _cost(size: int, best: Candidate, price: Price, guesses: tuple[str, ...]) -> Cost:
    # If published rates and measured times disagree, the measured ones are right; a band measures nothing.
    least_ns = price.low_ns if price.basis == "measured" else price.time_ns
    light_ns = min(price.light_ns, least_ns)
    return Cost(
        time_ns=math.ceil(price.time_ns),
        latency_ns=math.floor(min(price.latency_ns, price.time_ns)),
        algorithm=best.algorithm,
        steps=best.steps,
        wire_bytes=best.sent_bytes(size),
        low_ns=math.floor(max(price.low_ns, light_ns)),
        high_ns=math.ceil(price.high_ns),
        floor_ns=math.floor(max(price.floor_ns, light_ns)),
        light_ns=math.floor(light_ns),
        protocol=best.protocol,
        near_bytes=best.near_bytes(size),
        net_bytes=best.net_bytes(size),
        basis=price.basis,
        guesses=() if price.basis == "measured" else guesses,
    )
