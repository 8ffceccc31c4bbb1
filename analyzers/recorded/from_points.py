"""The event graph of recorded steps from their collectives alone, as live runs and plain traces have them.

Each rank is one lane: its own time, its arrival at a collective, and what it does when that is complete. The
data of a collective moves beside the lane. Steps begin anew with the ranks' recorded lead over each other.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.as_watched import PLACE
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.event_builder import Builder
from shardtoll.analyzers.replay.event_graph import EventGraph, Kind, Role
from shardtoll.analyzers.replay.event_order import order_of
from shardtoll.analyzers.replay.graph import Graph, graphs
from shardtoll.analyzers.shared.tally import numbered
from shardtoll.ledger.records.levels import watched_steps
from shardtoll.ledger.records.record import PHASES

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_KINDS: Final = (Kind.COMPUTE, Kind.COPY, Kind.HOST, Kind.GAP, Kind.CAPTURE)
"""What own time divides into, in the order of `_shares`."""


def from_points(context: Context, most: int | None = None) -> Recorded | None:
    """Return the graph of the steps that `graphs` can make; None where there is none.

    Of a live run the steps that all ranks watched, if there are any: capture slows the others.
    `most`: as many nodes, whole steps, are kept at most.
    """
    made = graphs(context)
    watched = watched_steps(context.ledger.tables["steps"])
    made = tuple(graph for graph in made if graph.step in watched) or made
    if not made:
        return None
    kept: list[Graph] = []
    nodes = 0
    for graph in made:
        nodes += 3 * len(graph.rank)
        if most is not None and nodes > most:
            break
        kept.append(graph)
    if not kept:
        return None
    ranks = tuple(sorted({rank for graph in kept for rank in graph.ranks}))
    parts = [_step(context, graph, ranks) for graph in kept]
    return _joined(context, parts, ranks, tuple(kept))


class _Part:
    """One step's nodes, before steps are put side by side."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.row: list[int] = []
        self.point: list[int] = []
        self.start: list[float] = []
        self.end: list[float] = []
        self.step = -1

    def node(
        self, start: float, end: float, row: int, *given: object, point: int = -1, **more: object
    ) -> int:
        """Add a node with its recorded time and its collective."""
        self.row.append(row)
        self.point.append(point)
        self.start.append(start)
        self.end.append(end)
        return self.builder.node(*given, **more)  # type: ignore[arg-type]


def _step(context: Context, graph: Graph, ranks: tuple[int, ...]) -> _Part:
    """Return the nodes of one step. Own time comes in the shares that the rank's step row knows."""
    part = _Part()
    part.step = graph.step
    shares = _shares(context, graph)
    frame = context.in_alike.loc[graph.index]
    begin_ns = _first_ns(context, graph)
    arrival = frame["arrival_ns"].to_numpy(dtype=np.float64) - begin_ns
    ended = arrival + frame["duration_ns"].to_numpy(dtype=np.float64)
    for place, rank in enumerate(graph.ranks):
        _rank(part, graph, place, ranks.index(rank), shares[place], arrival, ended)
    return part


def _rank(
    part: _Part, graph: Graph, place: int, number: int, share: Floats, arrival: Floats, ended: Floats
) -> None:
    """Add one rank's lane and its collectives."""
    now = float(graph.begin_ns[place])
    first: float = now
    moving: dict[int, int] = {}
    for point in graph.of_rank(place).tolist():
        row, own, idle = int(graph.row[point]), float(graph.own_ns[point]), float(graph.idle_ns[point])
        index = int(graph.index[row]) if row >= 0 else -1
        at = now + own
        if row >= 0:
            at = float(ended[row] if graph.done[point] else arrival[row])
        for kind, lasts in _own(own, idle, share):
            part.node(max(now, at - own), at, -1, number, number, kind, lasts, release_ns=first, point=point)
            first = 0.0
        now = at
        if row < 0:
            continue
        if not graph.done[point]:
            here = part.node(at, at, index, number, number, Kind.POINT, 0.0, release_ns=first)
            first = 0.0
            match, feeds = int(graph.match[row]), int(graph.feeds[row])
            role = Role.FEEDS if match < 0 else Role.WAITS if feeds < 0 else Role.BOTH
            moving[row] = part.node(
                at,
                float(ended[row]),
                index,
                number,
                -1,
                Kind.COLLECTIVE,
                float(graph.moved_ns[row]),
                meet=max(match, feeds),
                role=role,
                after=[here],
            )
        else:
            part.node(at, at, index, number, number, Kind.POINT, 0.0, after=[moving[row]])


def _own(own: float, idle: float, share: Floats) -> list[tuple[Kind, float]]:
    """Return own time in pieces: what was idle, and the rest in the shares of the rank's step."""
    busy = own - idle
    pieces = [(kind, busy * part) for kind, part in zip(_KINDS, share.tolist(), strict=True)]
    pieces.append((Kind.HOST, idle))
    return [(kind, lasts) for kind, lasts in pieces if lasts > 0]


def _shares(context: Context, graph: Graph) -> Floats:
    """Return for each rank which shares of its own time, idle time on record apart, are of which of `_KINDS`;
    [ranks, 5], rows of one."""
    rows = context.step_rows[context.step_rows["step"] == graph.step].set_index("rank")
    made = np.zeros((len(graph.ranks), len(_KINDS)))
    for place, rank in enumerate(graph.ranks):
        about = rows.loc[rank]
        idle = max(0.0, float(about["idle_ns"]) - float(graph.idle_ns[graph.rank == place].sum()))
        rest = float(about["unattributed_ns"])
        capture = min(rest, float(about["capture_ns"]))
        parts = np.array(
            [float(about["compute_ns"]), float(about["exposed_copy_ns"]), idle, rest - capture, capture]
        )
        made[place] = parts / parts.sum() if parts.sum() else (1.0, 0.0, 0.0, 0.0, 0.0)
    return made


def _first_ns(context: Context, graph: Graph) -> int:
    rows = context.step_rows[context.step_rows["step"] == graph.step]
    began = context.clocks.corrected(
        rows["rank"].to_numpy(dtype=np.int64), rows["start_ns"].to_numpy(dtype=np.int64)
    )
    return int(began.min())


def _joined(
    context: Context, parts: list[_Part], ranks: tuple[int, ...], made_from: tuple[Graph, ...]
) -> Recorded:
    graphs_of = [part.builder.graph() for part in parts]
    lanes = meets = nodes = 0
    shifted: dict[str, list[npt.NDArray[np.generic]]] = {}
    for graph in graphs_of:
        columns = {
            "duration_ns": graph.duration_ns,
            "lane": np.where(graph.lane >= 0, graph.lane + lanes, -1),
            "gap_ns": graph.gap_ns,
            "rank": graph.rank,
            "kind": graph.kind,
            "meet": np.where(graph.meet >= 0, graph.meet + meets, -1),
            "role": graph.role,
            "release_ns": graph.release_ns,
            "edge_from": graph.edge_from + nodes,
            "edge_to": graph.edge_to + nodes,
            "lag_ns": graph.lag_ns,
        }
        for column, values in columns.items():
            shifted.setdefault(column, []).append(values)
        lanes += len(ranks)
        meets += int(graph.meet.max(initial=-1)) + 1
        nodes += len(graph)
    graph = EventGraph(**{column: np.concatenate(values) for column, values in shifted.items()})
    row = np.array([row for part in parts for row in part.row], dtype=np.int64)
    names, name, phase = _words(context, row)
    return Recorded(
        graph=graph,
        order=order_of(graph, force=True),
        source="points",
        ranks=ranks,
        steps=tuple(part.step for part in parts),
        step=np.repeat([part.step for part in parts], [len(part.row) for part in parts]).astype(np.int64),
        row=row,
        phase=phase,
        name=name,
        names=names,
        module=np.zeros(len(row), dtype=np.int64),
        unknown_ns=np.where(graph.kind == int(Kind.GAP), graph.duration_ns, 0.0),
        asked_ns=np.array([value for part in parts for value in part.start]),
        graphs=made_from,
        call=None if {graph.step for graph in made_from} >= set(context.steps) else _calls(context),
        point=_points(parts, made_from),
        start_ns=np.array([value for part in parts for value in part.start]),
        end_ns=np.array([value for part in parts for value in part.end]),
    )


def _calls(context: Context) -> Ints:
    """Return for each collective, by index in their frame, the number of its call: equal in steps that make
    the same calls in the same order."""
    frame = context.collectives
    called = numbered(frame, PLACE)
    step = frame["step"].to_numpy(dtype=np.int64, na_value=-1)
    nth = pd.Series(called).groupby([called, step]).cumcount()
    return numbered(pd.DataFrame({"called": called, "nth": nth}), ("called", "nth"))


def _points(parts: list[_Part], made_from: tuple[Graph, ...]) -> Ints:
    """Return each node's point, counted over all graphs."""
    made, before = [], 0
    for part, graph in zip(parts, made_from, strict=True):
        point = np.array(part.point, dtype=np.int64)
        made.append(np.where(point >= 0, point + before, -1))
        before += len(graph.own_ns)
    return np.concatenate(made)


def _words(context: Context, row: Ints) -> tuple[tuple[str, ...], Ints, npt.NDArray[np.uint8]]:
    """Return names, the place of each node's name, and its phase: of a collective, else of the next one."""
    code, words = pd.factorize(context.collectives["op"].to_numpy(dtype=object))
    number = {name: nth for nth, name in enumerate(PHASES)}
    phase_of = context.collectives["phase"].map(number).to_numpy(np.uint8)
    place = context.collectives.index.get_indexer(pd.Index(row))
    following = pd.Series(np.where(place >= 0, place, -1)).replace(-1, np.nan).bfill().ffill()
    phase = (
        phase_of[following.fillna(0).to_numpy(dtype=np.int64)]
        if len(phase_of)
        else np.zeros(len(row), np.uint8)
    )
    return ("", *map(str, words)), np.where(place >= 0, code[place] + 1, 0).astype(np.int64), phase
