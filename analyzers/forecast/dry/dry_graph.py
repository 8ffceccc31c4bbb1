"""A dry step as a graph of events: the host launches, streams run, waits hold them back.

Time that the host takes for an operator, in launches of a kernel that has nothing to do.

An operator of an eager program costs the host more than its launch: Python, the module's call, views, and
what autograd notes. In a checkpointed block each saved tensor also goes through hooks, and backward runs
the block in Python again. If kernels are short, the device waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardtoll.analyzers.forecast.compute.grid import shares
from shardtoll.analyzers.forecast.dry.operators import Prices
from shardtoll.analyzers.forecast.plan.constants import Constants
from shardtoll.analyzers.forecast.plan.network import Timed
from shardtoll.analyzers.replay.events.event_builder import Builder
from shardtoll.analyzers.replay.events.event_graph import Kind
from shardtoll.ledger.records.dry import DryOp, DryWait
from shardtoll.ledger.records.record import Collective

_WAITED_NS = 2_000.0
"""Host time of noting a wait."""

_FUSED = 0.4
"""Launches of an operator that is compiled: one kernel stands for several, and nothing but it is called."""


@dataclass(slots=True)
class DryGraph:
    """The graph of one rank's step, and which node stands for which row."""

    builder: Builder
    op_nodes: list[int] = field(default_factory=list)
    """Node of each operator, in the order given."""
    collective_nodes: list[int] = field(default_factory=list)
    prices: list[Timed] = field(default_factory=list)
    """Prices of the operators, in the order given."""
    collective_prices: list[Timed | None] = field(default_factory=list)
    """None of one without a price: it runs for no time, and the step's time is a lower bound."""
    end: int = -1
    """The node at which the step is over."""


class _Lanes:
    """Streams of one rank, each a lane, with the place of every node on it."""

    def __init__(self, builder: Builder, rank: int) -> None:
        self._builder = builder
        self.rank = rank
        self.host = builder.lane()
        self._lanes: dict[str, int] = {}
        self._given: dict[str, list[tuple[int, int]]] = {}
        """Stream -> (order, node) of all that it was given."""

    def lane(self, stream: str) -> int:
        if stream not in self._lanes:
            self._lanes[stream] = self._builder.lane()
        return self._lanes[stream]

    def gave(self, stream: str, order: int, node: int) -> None:
        self._given.setdefault(stream, []).append((order, node))

    def last_before(self, stream: str, order: int) -> list[int]:
        """Return the last node that the stream ("": each stream) was given before `order`, if any."""
        streams = list(self._given) if not stream else [stream]
        made = []
        for name in streams:
            node = next((node for at, node in reversed(self._given.get(name, [])) if at < order), None)
            if node is not None:
                made.append(node)
        return made


def build(
    ops: Sequence[DryOp],
    collectives: Sequence[Collective],
    waits: Sequence[DryWait],
    prices: Prices,
    rank: int = 0,
) -> DryGraph:
    """Return the graph of one step of one rank. Other ranks are taken to arrive when this one does."""
    builder = Builder()
    graph = DryGraph(builder, [-1] * len(ops), [-1] * len(collectives))
    graph.prices = [prices.operator(op) for op in ops]
    host = HostTimes(ops, prices.constants, prices.gpu)
    graph.collective_prices = [prices.collective(row) for row in collectives]
    lanes = _Lanes(builder, rank)
    rows: list[tuple[int, int, int]] = [(op.order, 0, place) for place, op in enumerate(ops)]
    rows += [(row.order or 0, 1, place) for place, row in enumerate(collectives)]
    rows += [(wait.order, 2, place) for place, wait in enumerate(waits)]
    communicators: dict[str, int] = {}
    for _, kind, place in sorted(rows):
        if kind == 0:
            _operator(builder, lanes, ops[place], graph, place, host.of(ops[place]))
        elif kind == 1:
            _collective(builder, lanes, collectives[place], graph, place, communicators)
        else:
            _wait(builder, lanes, waits[place])
    graph.end = builder.node(rank, lanes.host, Kind.SYNC, after=lanes.last_before("", 1 << 60))
    return graph


def _operator(
    builder: Builder, lanes: _Lanes, op: DryOp, graph: DryGraph, place: int, host_ns: float
) -> None:
    launch = builder.node(lanes.rank, lanes.host, Kind.HOST, host_ns)
    kind = (
        Kind.COPY
        if op.op.startswith("memcpy.")
        else Kind.OPTIMIZER
        if op.phase == "optimizer"
        else Kind.COMPUTE
    )
    node = builder.node(
        lanes.rank, lanes.lane(op.stream), kind, graph.prices[place].expected_ns, after=(launch,)
    )
    lanes.gave(op.stream, op.order, node)
    graph.op_nodes[place] = node


def _collective(
    builder: Builder,
    lanes: _Lanes,
    row: Collective,
    graph: DryGraph,
    place: int,
    communicators: dict[str, int],
) -> None:
    stream = row.stream_name or "compute"
    launch = builder.node(lanes.rank, lanes.host, Kind.HOST, _WAITED_NS)
    before = communicators.get(row.group)
    price = graph.collective_prices[place]
    node = builder.node(
        lanes.rank,
        lanes.lane(stream),
        Kind.COLLECTIVE,
        0.0 if price is None else price.expected_ns,
        after=(launch,) if before is None else (launch, before),
    )
    # One communicator runs its collectives one after another, on whichever streams.
    communicators[row.group] = node
    lanes.gave(stream, row.order or 0, node)
    graph.collective_nodes[place] = node


def _wait(builder: Builder, lanes: _Lanes, wait: DryWait) -> None:
    after = lanes.last_before(wait.for_stream, wait.for_order)
    if wait.stream is None:
        builder.node(lanes.rank, lanes.host, Kind.SYNC, after=after)
        return
    launch = builder.node(lanes.rank, lanes.host, Kind.HOST, _WAITED_NS)
    node = builder.node(lanes.rank, lanes.lane(wait.stream), Kind.POINT, after=(*after, launch))
    lanes.gave(wait.stream, wait.order, node)


class HostTimes:
    """Host times of the operators of one step."""

    def __init__(self, ops: Iterable[DryOp], constants: Constants, gpu: str) -> None:
        self._floor_ns = 1000 * constants.get("host_us", gpu)
        self._checkpointed = {op.module for op in ops if op.phase == "recompute" and op.module is not None}

    def of(self, op: DryOp) -> float:
        """Return the ns that the host needs until the operator is launched."""
        return self._floor_ns * (_FUSED if op.fused is not None else shares()[self._kind(op)])

    def _kind(self, op: DryOp) -> str:
        if op.phase == "recompute":
            return "host_recompute"
        if op.phase == "backward":
            return "host_backward"
        if op.phase == "forward":
            return "host_checkpointed_forward" if op.module in self._checkpointed else "host_forward"
        # An optimizer's, or the program's own: no autograd and no module.
        return "host_other"
