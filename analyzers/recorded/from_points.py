"""The event graph of recorded steps from their collectives alone, as live runs and plain traces have them.

Each rank is one lane: its own time, its arrival at a collective, and what it does when that is complete. The
data of a collective moves outside the lane, at the same time. Steps begin anew with the ranks' recorded lead
over each other.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.as_watched import PLACE
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.event_builder import Builder
from shardtoll.analyzers.replay.events.event_graph import EventGraph, Kind, Role
from shardtoll.analyzers.replay.events.event_order import order_of
from shardtoll.analyzers.replay.points.point_graph import Graph, graphs, long_graphs
from shardtoll.analyzers.shared.tally import numbered
from shardtoll.ledger.records.levels import watched_steps
from shardtoll.ledger.records.record import PHASES

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_KINDS: Final = (Kind.COMPUTE, Kind.COPY, Kind.HOST, Kind.GAP, Kind.CAPTURE)
"""Kinds that own time divides into, in the order of `_shares`."""


def from_points(context: Context, most: int | None = None) -> Recorded | None:
    """Return the graph of the steps that `graphs` can make; None if there is none.

    In a live run the steps that all ranks watched, if there are any: capture slows the others. `most`: as
    many nodes, whole steps, are kept at most.
    """
    made = long_graphs(context) if most is None else graphs(context)
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

    def __init__(self, step: int) -> None:
        self.builder = Builder()
        self.step = step
        self._columns: dict[str, list[npt.NDArray[np.generic]]] = {}

    def keep(self, **columns: npt.NDArray[np.generic]) -> None:
        """Keep what nodes just added stand for: `row`, `point`, and their recorded `start` and `end`."""
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)

    def column(self, name: str) -> npt.NDArray[np.generic]:
        """Return one of these columns, by node."""
        return np.concatenate(self._columns[name])


def _step(context: Context, graph: Graph, ranks: tuple[int, ...]) -> _Part:
    """Return the nodes of one step. Own time comes in the shares that the rank's step row knows."""
    part = _Part(graph.step)
    shares = _shares(context, graph)
    frame = context.in_alike[["arrival_ns", "duration_ns"]].loc[graph.index]
    begin_ns = _first_ns(context, graph)
    arrival = frame["arrival_ns"].to_numpy(dtype=np.float64) - begin_ns
    ended = arrival + frame["duration_ns"].to_numpy(dtype=np.float64)
    for place, rank in enumerate(graph.ranks):
        _rank(part, graph, place, ranks.index(rank), shares[place], arrival, ended)
    return part


def _rank(
    part: _Part, graph: Graph, place: int, number: int, share: Floats, arrival: Floats, ended: Floats
) -> None:
    """Add one rank's lane and its collectives.

    A point is own time in pieces, then the arrival at a collective and its data, or what waits for those.
    """
    points = graph.of_rank(place)
    row, done = graph.row[points], graph.done[points]
    own, idle = graph.own_ns[points].astype(np.float64), graph.idle_ns[points].astype(np.float64)
    begin = float(graph.begin_ns[place])
    has_row = row >= 0
    at = np.where(done, ended[row], arrival[row])
    now = np.concatenate([[begin], at[:-1]])
    at = np.where(has_row, at, now + own)
    pieces = len(_KINDS) + 1
    shape = (len(points), pieces + 2)
    lasts = np.zeros(shape)
    lasts[:, : pieces - 1] = (own - idle)[:, None] * share
    lasts[:, pieces - 1] = idle
    made = lasts > 0
    made[:, pieces] = has_row
    made[:, pieces + 1] = has_row & ~done
    lasts[:, pieces + 1] = graph.moved_ns[row]
    meet, roles = np.full(shape, -1, dtype=np.int64), np.full(shape, int(Role.BOTH), dtype=np.int64)
    match, feeds = graph.match[row], graph.feeds[row]
    meet[:, -1] = np.maximum(match, feeds)
    roles[:, -1] = np.select([match < 0, feeds < 0], [int(Role.FEEDS), int(Role.WAITS)], int(Role.BOTH))
    kind = np.array([*map(int, (*_KINDS, Kind.HOST, Kind.POINT, Kind.COLLECTIVE))], dtype=np.int64)
    lane = np.array([number] * (pieces + 1) + [-1], dtype=np.int64)
    start, end = np.repeat(at[:, None], shape[1], axis=1), np.repeat(at[:, None], shape[1], axis=1)
    start[:, :pieces] = np.maximum(now, at - own)[:, None]
    end[:, -1] = ended[row]
    index = np.full(shape, -1, dtype=np.int64)
    index[:, pieces:] = np.where(has_row, graph.index[row], -1)[:, None]
    point = np.full(shape, -1, dtype=np.int64)
    point[:, :pieces] = points[:, None]
    release = np.zeros(int(made.sum()))
    release[:1] = begin
    nodes = np.full(shape, -1, dtype=np.int64)
    nodes[made] = part.builder.nodes(
        number,
        np.broadcast_to(lane, shape)[made],
        np.broadcast_to(kind, shape)[made],
        lasts[made],
        meet=meet[made],
        role=roles[made],
        release_ns=release,
    )
    part.keep(row=index[made], point=point[made], start=start[made], end=end[made])
    moving = np.full(len(graph.match), -1, dtype=np.int64)
    begins, ends = has_row & ~done, has_row & done
    moving[row[begins]] = nodes[begins, -1]
    part.builder.edges(nodes[begins, pieces], nodes[begins, -1])
    part.builder.edges(moving[row[ends]], nodes[ends, pieces])
    _feed_more(part, graph, number, nodes[begins, pieces], row[begins], arrival)


def _feed_more(part: _Part, graph: Graph, number: int, arrives: Ints, rows: Ints, arrival: Floats) -> None:
    """Add a node for each further collective that a rank's rows feed, at their arrival."""
    place = np.full(len(graph.match), -1, dtype=np.int64)
    place[rows] = arrives
    here = np.flatnonzero(place[graph.fed_by] >= 0)
    if not len(here):
        return
    by = graph.fed_by[here]
    feeding = int(Role.FEEDS)
    nodes = part.builder.nodes(number, -1, int(Kind.POINT), 0.0, meet=graph.fed[here], role=feeding)
    none = np.full(len(here), -1, dtype=np.int64)
    part.keep(row=none, point=none, start=arrival[by], end=arrival[by])
    part.builder.edges(place[by], nodes)


def _shares(context: Context, graph: Graph) -> Floats:
    """Return for each rank which shares of its own time, idle time on record apart, are of which of `_KINDS`;
    [ranks, 5], rows of one."""
    rows = context.step_rows[context.step_rows["step"] == graph.step].set_index("rank")
    made = np.zeros((len(graph.ranks), len(_KINDS)))
    for place, rank in enumerate(graph.ranks):
        about = rows.loc[rank]
        # Idle time that waits for the slowest rank at the end is no own time.
        elsewhere_ns = graph.idle_ns[graph.rank == place].sum() + graph.left_out_ns[place]
        idle = max(0.0, float(about["idle_ns"]) - float(elsewhere_ns))
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
    row = np.concatenate([part.column("row") for part in parts]).astype(np.int64)
    start = np.concatenate([part.column("start") for part in parts]).astype(np.float64)
    names, name, phase = _words(context, row)
    return Recorded(
        graph=graph,
        order=order_of(graph, force=True),
        source="points",
        ranks=ranks,
        steps=tuple(part.step for part in parts),
        step=np.repeat([part.step for part in parts], [len(graph) for graph in graphs_of]).astype(np.int64),
        row=row,
        phase=phase,
        name=name,
        names=names,
        module=np.zeros(len(row), dtype=np.int64),
        unknown_ns=np.where(graph.kind == int(Kind.GAP), graph.duration_ns, 0.0),
        asked_ns=start,
        graphs=made_from,
        call=None if {graph.step for graph in made_from} >= set(context.steps) else _calls(context),
        point=_points(parts, made_from),
        start_ns=start,
        end_ns=np.concatenate([part.column("end") for part in parts]).astype(np.float64),
    )


def _calls(context: Context) -> Ints:
    """Return for each collective, by index in their frame, the number of its call. It is equal in steps that
    make the same calls in the same order."""
    frame = context.collectives
    called = numbered(frame, PLACE)
    step = frame["step"].to_numpy(dtype=np.int64, na_value=-1)
    nth = pd.Series(called).groupby([called, step]).cumcount()
    return numbered(pd.DataFrame({"called": called, "nth": nth}), ("called", "nth"))


def _points(parts: list[_Part], made_from: tuple[Graph, ...]) -> Ints:
    """Return each node's point, counted over all graphs."""
    made, before = [], 0
    for part, graph in zip(parts, made_from, strict=True):
        point = part.column("point").astype(np.int64)
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
