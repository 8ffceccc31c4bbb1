"""Positions of the groups of a plan, and the times of their collectives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, Protocol

from shardtoll.analyzers.roofline import Fabric, Placement, collective_cost


@dataclass(frozen=True, slots=True)
class Timed:
    """A collective's time with the band that holds nine of ten sound runs."""

    expected_ns: float
    low_ns: float
    high_ns: float


NOTHING: Final = Timed(0.0, 0.0, 0.0)


class Network(Protocol):
    """Prices collectives: a fabric's model, or bandwidths that were measured by node count."""

    @property
    def name(self) -> str:
        """Name for the reader."""

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks that share the fast links; None if the network does not say."""

    def time(self, op: str, message_bytes: float, placement: Placement) -> Timed | None:
        """Return the time of a collective; None if it is unknown."""


def place_group(ranks: int, stride: int, per_node: int) -> Placement:
    """Return where a group of ranks 0, stride, 2 stride, ... stands, with `per_node` consecutive ranks a
    node.

    The other groups of the same kind send at the same time and share the node's network cards.
    """
    on_one = max(1, min(ranks, per_node // stride if stride <= per_node else 1))
    nodes = math.ceil(ranks / on_one)
    sharing = max(1, per_node // on_one) if nodes > 1 else 1
    return Placement(ranks, nodes, on_one, sharing)


@dataclass(frozen=True)
class FabricNetwork:
    """Collectives by the roofline's model of a fabric."""

    fabric: Fabric

    @property
    def name(self) -> str:
        """The fabric's name."""
        return self.fabric.name

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks of one NVLink domain, else of one node."""
        per = self.fabric.ranks_per_domain or self.fabric.ranks_per_node
        return None if per is None else int(per.value)

    def time(self, op: str, message_bytes: float, placement: Placement) -> Timed | None:
        """Return the roofline's time; sizes are rounded to 2 %, so that equal shapes are priced once."""
        if placement.ranks == 1 or message_bytes <= 0:
            return NOTHING
        step = max(1, 2 ** (max(0, int(message_bytes).bit_length() - 6)))
        return _priced(_Keyed(self.fabric), op, round(message_bytes / step) * step, placement)


@dataclass(frozen=True)
class _Keyed:
    """A fabric that is hashed by its name: one name is one fabric within a forecast."""

    fabric: Fabric

    def __hash__(self) -> int:
        return hash(self.fabric.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and other.fabric is self.fabric


@lru_cache(maxsize=65536)
def _priced(keyed: _Keyed, op: str, message_bytes: int, placement: Placement) -> Timed | None:
    cost = collective_cost(keyed.fabric, op, message_bytes, placement)
    return None if cost is None else Timed(cost.time_ns, cost.low_ns, cost.high_ns)


_FACTORS: Final = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


@dataclass(frozen=True)
class MeasuredNetwork:
    """Bus bandwidth that was measured on one cluster by node count, of whole nodes: p5, median and p95 in
    GB/s."""

    name: str
    busbw_gbps: Mapping[str, tuple[tuple[int, float, float, float], ...]]
    """Op -> (nodes, p5, median, p95), nodes ascending."""
    ranks_per_node: int | None = 8
    latency_us: float = 20.0
    """Latency of one hop between nodes."""
    part_shares: tuple[tuple[int, float], ...] = ()
    """Ranks of one node -> their bus bandwidth over that of the whole node, ranks ascending."""

    def time(self, op: str, message_bytes: float, placement: Placement) -> Timed | None:
        """Return message x factor / bandwidth; a group with few ranks a node has its share of the cards."""
        if placement.ranks == 1 or message_bytes <= 0:
            return NOTHING
        table = self.busbw_gbps.get(op) or self.busbw_gbps.get("all_gather")
        if table is None:
            return None
        n = placement.ranks
        factor = _FACTORS.get(op, 1.0) * (n - 1) / n if op in _FACTORS else 1.0
        low, middle, high = _between(table, placement.nodes)
        share = 1.0 if placement.spans_nodes else self._part_share(n)
        if placement.spans_nodes and self.ranks_per_node:
            share = placement.ranks_per_node / self.ranks_per_node
        hops = placement.nodes - 1 if placement.spans_nodes else 0
        latency_ns = 1000 * (15.0 + self.latency_us * math.log2(1 + hops))
        moved = message_bytes * factor / share
        return Timed(latency_ns + moved / middle, latency_ns + moved / high, latency_ns + moved / low)

    def _part_share(self, ranks: int) -> float:
        """Return the share of the node's bus bandwidth that a group of its ranks reaches: fewer have less."""
        for below, above in pairwise(self.part_shares):
            if ranks <= above[0]:
                part = max(0.0, math.log(ranks / below[0]) / math.log(above[0] / below[0]))
                return below[1] + part * (above[1] - below[1])
        return 1.0


def _between(table: tuple[tuple[int, float, float, float], ...], nodes: int) -> tuple[float, float, float]:
    """Return the bandwidths at a node count, log-interpolated; those of the last count beyond it."""
    if nodes <= table[0][0]:
        return table[0][1:]
    for before, after in pairwise(table):
        if nodes <= after[0]:
            part = math.log(nodes / before[0]) / math.log(after[0] / before[0])
            low, middle, high = (
                math.exp((1 - part) * math.log(b) + part * math.log(a))
                for b, a in zip(before[1:], after[1:], strict=True)
            )
            return low, middle, high
    return table[-1][1:]
