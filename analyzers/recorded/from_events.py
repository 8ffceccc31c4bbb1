"""The event graph of recorded steps from the events of traces: launches, streams, waits and meetings.

Each node arrives as late after what held it up as it did on record. Records say what that was: the call that
launched it, the work before it on its stream, or the work that its stream waits for. A gap that none of them
explains moves with the node's predecessor on its lane.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.handed_over import messages
from shardtoll.analyzers.recorded.handed_edges import Edges, Nodes, edges_of
from shardtoll.analyzers.recorded.recorded import NO_STEP, Recorded
from shardtoll.analyzers.replay.events.event_builder import Builder
from shardtoll.analyzers.replay.events.event_graph import Kind, Role
from shardtoll.analyzers.replay.events.event_order import lane_before_of, order_of
from shardtoll.analyzers.replay.points.point_graph import dependencies
from shardtoll.ledger.records.record import PHASES

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NEAR_NS: Final = 20_000
"""Work that begins within this after its stream came free or its launch returned was held up by that."""
_SOONEST_NS: Final = 2_000.0
"""No device begins sooner after the call that launches its work."""
_FROZEN: Final = 0.5
"""If a larger share of the work begins sooner, calls were written down with the work, and tell nothing."""
_EQUAL_NS: Final = 10.0
_MADE_UP: Final = 0.9
"""Calls count as made up from the work if so large a share of it begins equally long after them, to
`_EQUAL_NS`. On real devices the share is 0.5 %; in traces of Primus it is 99 %, 50 µs each."""
_KINDS: Final = {
    "launch": Kind.HOST,
    "sync": Kind.SYNC,
    "data": Kind.DATA,
    "compute": Kind.COMPUTE,
    "collective": Kind.COLLECTIVE,
    "copy": Kind.COPY,
    "unclassified": Kind.GAP,
    "wait": Kind.POINT,
}


class _Columns(Struct, frozen=True):
    """The kept events of all ranks in columns, rank by rank; -1 for what is not known."""

    rank: Ints
    """Place of the rank."""
    step: Ints
    kind: npt.NDArray[np.uint8]
    lane: Ints
    on_host: Bools
    start: Floats
    end: Floats
    launch: Ints
    """Place of the event here; so is `awaits`."""
    awaits: Ints
    row: Ints
    phase: npt.NDArray[np.uint8]
    name: Ints
    module: Ints
    names: tuple[str, ...]
    thread: Ints
    """Host thread; -1 on a device."""
    zero_ns: float
    """The instant from which `start` and `end` count."""


def from_events(context: Context, most: int | None = None) -> Recorded | None:
    """Return the graph; None if no step has events of all ranks, or launches are unknown.

    `most`: as many nodes, whole steps, are kept at most.
    """
    frame = context.ledger.frame("events")
    if frame.empty:
        return None
    ranks = tuple(sorted(int(rank) for rank in frame["rank"].unique()))
    is_message = (frame["kind"] == "message").to_numpy(dtype=bool)
    if is_message.any():
        frame = frame[~is_message]  # a copy of a large table
    steps = _steps(frame, ranks, most)
    if not steps or set(ranks) != set(context.ledger.run.ranks_seen):
        return None
    columns = _columns(context, frame, ranks, steps)
    if _frozen(columns):
        return None
    return _recorded(context, columns, ranks, steps, _handed(context, columns))


def _handed(context: Context, columns: _Columns) -> Edges | None:
    """Return how messages between hosts hold up nodes; None if there are none."""
    made = messages(context)
    if made is None:
        return None
    sent, called, got = (times - columns.zero_ns for times in (made.sent, made.called, made.got))
    made = replace(made, sent=sent, called=called, got=got)
    asked = np.where(columns.launch >= 0, columns.start[columns.launch], np.inf)
    nodes = Nodes(columns.rank, columns.lane, columns.thread, columns.start, columns.end, asked)
    return edges_of(nodes, made)


def _steps(frame: pd.DataFrame, ranks: tuple[int, ...], most: int | None) -> tuple[int, ...]:
    """Return the steps that all ranks have, up to the first that is missing on one."""
    known = frame["step"].notna().to_numpy(dtype=bool)
    step = frame["step"].to_numpy(dtype=np.int64, na_value=NO_STEP)[known]
    rank = np.searchsorted(ranks, frame["rank"].to_numpy(dtype=np.int64)[known])
    numbers, place = np.unique(step, return_inverse=True)
    seen = np.zeros((len(numbers), len(ranks)), dtype=bool)
    seen[place, rank] = True
    counts, sizes = seen.sum(axis=1).tolist(), np.bincount(place, minlength=len(numbers)).tolist()
    kept: list[int] = []
    total = 0
    for number, count, size in zip(numbers.tolist(), counts, sizes, strict=True):
        total += size
        if count < len(ranks) or (most is not None and total > most):
            if kept:
                break
            total -= size
            continue
        kept.append(number)
    return tuple(kept)


def _columns(
    context: Context, frame: pd.DataFrame, ranks: tuple[int, ...], steps: tuple[int, ...]
) -> _Columns:
    step = frame["step"].to_numpy(dtype=np.int64, na_value=NO_STEP)
    rank = np.searchsorted(ranks, frame["rank"].to_numpy(dtype=np.int64))
    start = context.clocks.corrected(
        frame["rank"].to_numpy(dtype=np.int64), frame["start_ns"].to_numpy(dtype=np.int64)
    ).astype(np.float64)
    end = start + frame["duration_ns"].to_numpy(dtype=np.float64)
    chosen = np.isin(step, steps)
    # The rank was busy between the steps kept, too.
    first, last = np.full(len(ranks), np.inf), np.full(len(ranks), -np.inf)
    np.minimum.at(first, rank[chosen], start[chosen])
    np.maximum.at(last, rank[chosen], end[chosen])
    kept = chosen | ((step == NO_STEP) & (start >= first[rank]) & (end <= last[rank]))
    index = frame["index"].to_numpy(dtype=np.int64)
    place = _placed(rank, index, kept)
    on_host = frame["stream"].isna().to_numpy(dtype=bool)
    lane_key = np.where(
        on_host,
        -1 - frame["thread"].to_numpy(dtype=np.int64, na_value=0),
        frame["stream"].to_numpy(dtype=np.int64, na_value=0),
    )
    # One number for both: columns of two are sorted ten times as slowly.
    keys, key = np.unique(lane_key[kept], return_inverse=True)
    _, lane = np.unique(rank[kept] * len(keys) + key, return_inverse=True)
    name, words = pd.factorize(frame["name"][kept].to_numpy(dtype=object))
    module, modules = pd.factorize(frame["module"][kept].fillna("").to_numpy(dtype=object))
    zero = float(start[kept].min())
    return _Columns(
        rank=rank[kept],
        step=step[kept],
        kind=frame["kind"][kept].map({name: int(kind) for name, kind in _KINDS.items()}).to_numpy(np.uint8),
        lane=np.asarray(lane).reshape(-1).astype(np.int64),
        on_host=on_host[kept],
        start=start[kept] - zero,
        end=end[kept] - zero,
        launch=place(frame["launch"][kept]),
        awaits=place(frame["awaits"][kept]),
        row=_rows(context, frame[kept]),
        phase=frame["phase"][kept].map({name: nth for nth, name in enumerate(PHASES)}).to_numpy(np.uint8),
        name=name.astype(np.int64) + 1,
        module=np.where(np.array(modules)[module] == "", 0, module + 1 + len(words)).astype(np.int64),
        names=("", *(str(word) for word in words), *(str(word) for word in modules)),
        thread=np.where(on_host, frame["thread"].to_numpy(dtype=np.int64, na_value=0), -1)[kept],
        zero_ns=zero,
    )


def _placed(rank: Ints, index: Ints, kept: Bools):  # type: ignore[no-untyped-def]
    """Return a function from a column of indices, of the kept events, to places among them."""
    most = int(index.max()) + 1
    where = np.full((int(rank.max()) + 1) * most, -1, dtype=np.int64)
    where[rank[kept] * most + index[kept]] = np.arange(int(kept.sum()))
    own = rank[kept]

    def place(column: pd.Series[int]) -> Ints:
        values = column.to_numpy(dtype=np.int64, na_value=-1)
        inside = (values >= 0) & (values < most)
        return np.where(inside, where[own * most + np.clip(values, 0, most - 1)], -1)

    return place


def _rows(context: Context, frame: pd.DataFrame) -> Ints:
    """Return the index in the collectives' frame of each event's collective; -1 for none."""
    collectives = context.collectives
    place = collectives.groupby("rank").cumcount()
    keyed = pd.Series(
        collectives.index.to_numpy(dtype=np.int64),
        index=pd.MultiIndex.from_arrays([collectives["rank"].astype("int64"), place]),
    )
    number = frame["collective"].to_numpy(dtype=np.int64, na_value=-1)
    wanted = pd.MultiIndex.from_arrays([frame["rank"].astype("int64"), number])
    return keyed.reindex(wanted).fillna(-1).to_numpy(dtype=np.int64)


def _frozen(columns: _Columns) -> bool:
    launched = columns.launch >= 0
    if not launched.any():
        return True
    lead = columns.start[launched] - columns.start[columns.launch[launched]]
    if float((lead <= _SOONEST_NS).mean()) >= _FROZEN:
        return True
    # No device begins all its work equally long after the calls: those were made up from the work.
    return float((np.abs(lead - np.median(lead)) <= _EQUAL_NS).mean()) >= _MADE_UP


def _recorded(
    context: Context,
    columns: _Columns,
    ranks: tuple[int, ...],
    steps: tuple[int, ...],
    handed: Edges | None,
) -> Recorded:
    count = len(columns.rank)
    duration = columns.end - columns.start
    gap, release, unknown = np.zeros(count), np.zeros(count), np.zeros(count)
    lag = np.zeros(count)
    before = lane_before_of(columns.lane)
    lane_end = np.where(before >= 0, columns.end[before], -np.inf)
    awaited = np.where(columns.awaits >= 0, columns.end[columns.awaits], -np.inf)
    meet, role, moved = _meetings(context, columns)
    there = meet >= 0
    duration[there | (columns.row >= 0)] = moved[there | (columns.row >= 0)]
    host = columns.on_host
    gap[host] = np.where(before[host] >= 0, columns.start[host] - lane_end[host], 0.0)
    # A wait is over when the device is done; what the call takes beyond that is its own.
    waited = host & (columns.awaits >= 0)
    duration[waited] = np.maximum(0.0, columns.end[waited] - np.maximum(awaited, columns.start)[waited])
    if handed is not None:
        # It stays the host's own time in so far as it did not wait for a message.
        gap[host] -= np.minimum(handed.waited, np.maximum(gap, 0.0))[host]
    release[host & (before < 0)] = columns.start[host & (before < 0)]
    _device(columns, before, gap, lag, release, unknown)
    asked = np.where(columns.launch >= 0, columns.start[columns.launch], columns.start)
    builder = Builder()
    builder.nodes(
        columns.rank,
        columns.lane,
        columns.kind,
        duration,
        gap_ns=gap,
        meet=meet,
        role=role,
        release_ns=release,
    )
    launched = np.flatnonzero(columns.launch >= 0)
    builder.edges(columns.launch[launched], launched, lag[launched])
    waits = np.flatnonzero(columns.awaits >= 0)
    builder.edges(columns.awaits[waits], waits)
    if handed is not None:
        builder.edges(handed.before, handed.after, handed.lag)
    graph = builder.graph()
    return Recorded(
        graph=graph,
        order=order_of(graph, force=True),
        source="events",
        ranks=ranks,
        steps=steps,
        step=columns.step,
        row=columns.row,
        phase=columns.phase,
        name=columns.name,
        names=columns.names,
        module=columns.module,
        unknown_ns=unknown,
        asked_ns=asked,
        graphs=(),
        point=np.full(len(graph), -1, dtype=np.int64),
        start_ns=columns.start,
        end_ns=columns.end,
        first_ns=_first(context, columns, ranks, steps[0]),
    )


def _first(context: Context, columns: _Columns, ranks: tuple[int, ...], step: int) -> Floats:
    """Return when each rank's first step begins: as long before its last end as its step row lasts.

    If the row ends with the step, the row begins there. If a device is a whole step behind its host, the row
    ends with the host's step.
    """
    rows = context.step_rows[context.step_rows["step"] == step].drop_duplicates("rank").set_index("rank")
    lasts = rows["duration_ns"].reindex(list(ranks)).to_numpy(dtype=np.float64, na_value=np.nan)
    here = columns.step == step
    first, last = np.full(len(ranks), np.inf), np.full(len(ranks), -np.inf)
    np.minimum.at(first, columns.rank[here], columns.start[here])
    np.maximum.at(last, columns.rank[here], columns.end[here])
    return np.where(np.isfinite(lasts), last - lasts, first)


def _device(
    columns: _Columns, before: Ints, gap: Floats, lag: Floats, release: Floats, unknown: Floats
) -> None:
    """Fill in what held up each piece of device work."""
    work = ~columns.on_host & (columns.kind != int(Kind.POINT))
    free = _free(columns, before)
    launched = columns.launch >= 0
    called = np.where(launched, columns.end[columns.launch], -np.inf)
    since_call, since_free = columns.start - called, columns.start - free
    by_launch = work & launched & (since_call <= NEAR_NS) & (since_call < since_free)
    lag[by_launch] = since_call[by_launch]
    usual = float(np.median(since_call[by_launch])) if by_launch.any() else 0.0
    others = work & ~by_launch
    on_stream = others & np.isfinite(since_free)
    gap[on_stream] = since_free[on_stream]
    lag[on_stream & launched] = np.minimum(since_call, usual)[on_stream & launched]
    # Nothing before it on its stream: it can only have waited after its launch, or for nothing on record.
    alone = others & ~np.isfinite(since_free)
    lag[alone & launched] = since_call[alone & launched]
    release[alone & ~launched] = columns.start[alone & ~launched]
    unexplained = np.where(on_stream, since_free, np.where(alone & launched, since_call, 0.0))
    unknown[others] = np.where(unexplained > NEAR_NS, unexplained, 0.0)[others]


def _free(columns: _Columns, before: Ints) -> Floats:
    """Return when the stream of each work was free for it: the work before had ended, and its waits."""
    free = np.where(before >= 0, columns.end[before], -np.inf)
    point = columns.kind == int(Kind.POINT)
    # A wait takes no time of its own. It hands on when the stream was free and the awaited work had ended.
    for place in np.flatnonzero(point).tolist():
        awaited = columns.end[columns.awaits[place]] if columns.awaits[place] >= 0 else -np.inf
        previous = before[place]
        prior = -np.inf if previous < 0 else free[previous] if point[previous] else columns.end[previous]
        free[place] = max(prior, awaited)
    after = np.flatnonzero((before >= 0) & ~point)
    after = after[point[before[after]]]
    free[after] = free[before[after]]
    return free


def _meetings(context: Context, columns: _Columns) -> tuple[Ints, npt.NDArray[np.uint8], Floats]:
    """Return rendezvous and role of each node, and its time from the last arrival on."""
    count = len(columns.rank)
    meet = np.full(count, -1, dtype=np.int64)
    role = np.zeros(count, dtype=np.uint8)
    moved = columns.end - columns.start
    nodes = np.flatnonzero(columns.row >= 0)
    if not len(nodes):
        return meet, role, moved
    rows = context.collectives.loc[columns.row[nodes]]
    start = np.round(columns.start[nodes]).astype(np.int64)
    end = np.round(columns.end[nodes]).astype(np.int64)
    waits, feeds, lasts = dependencies(rows, start, end)
    number = np.maximum(waits, feeds)
    meet[nodes] = number
    role[nodes] = np.where(waits < 0, int(Role.FEEDS), np.where(feeds < 0, int(Role.WAITS), int(Role.BOTH)))
    moved[nodes] = lasts
    return meet, role, moved
