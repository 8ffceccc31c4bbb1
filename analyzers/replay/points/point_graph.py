"""The dependency graph of one step over all ranks, from what the collectives' table tells.

Each rank runs through points in order of its own time. It arrives at a collective, send or receive, and later
goes on with the result. Between two points lies the rank's own time: nothing else delayed it. A collective is
complete when all that it waits for have arrived and its data has moved. Dependencies come from matches, never
from times that happen to agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct, field

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import ROOTED
from shardtoll.analyzers.context.rooted import FROM_ROOT
from shardtoll.analyzers.replay.points.held_rows import SLACK_NS, Dependencies, with_held
from shardtoll.analyzers.replay.points.host_messages import message_rows, with_messages
from shardtoll.analyzers.replay.points.own_time import blocked, blocked_until, idle_until
from shardtoll.analyzers.replay.points.point_order import in_order
from shardtoll.analyzers.replay.points.sends import delivered
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep, with_columns

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

COLUMNS: Final = (
    *("step", "rank", "op", "root", "match_id", "issue_ns", "start_ns"),
    *("arrival_ns", "duration_ns", "exposed_ns", "wait_ns", "root_place"),
)
"""Read of a collective; messages between hosts have the same columns."""

OF_STEPS: Final = ("step", "rank", "start_ns", "duration_ns", "idle_ns")
"""Read of a rank's step."""

MOST_BEYOND: Final = 0.01
"""By this share of its duration after its end a collective shows that a step holds time it does not count."""

MOST_ROWS: Final = 100_000
"""Most collectives of a record that a report replays whole: of longer ones it takes as many whole steps as
fit."""

MOST_ROWS_ALONE: Final = 1_000_000
"""The same of what is asked for by itself, as by `whatif`: steps of hundreds of ranks."""


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


class Graph(Struct, frozen=True):
    """One step. Points are in an order in which each comes after all that it depends on."""

    step: int
    ranks: tuple[int, ...]
    begin_ns: Ints
    """By rank: how long after the first one its step began."""
    rank: Ints
    """By point: place in `ranks`."""
    row: Ints
    """By point: place in the arrays of rows; -1 if a point is the end of the rank's step."""
    done: Bools
    """By point: whether the row is complete here; else the rank arrives at it."""
    own_ns: Ints
    """By point: the rank's own time since its point before."""
    idle_ns: Ints
    """By point: how much of that it was idle, for no reason on record."""
    index: Ints
    """By row: its index in the collectives' frame."""
    match: Ints
    """By row: number of the collective for whose arrivals it waits; -1 if it waits for none."""
    feeds: Ints
    """By row: number of the collective in which others wait for its arrival; -1 if none do."""
    moved_ns: Ints
    """By row: how long it takes from the last arrival on that it waits for."""
    left_out_ns: Ints
    """By rank: idle time at the end of its step that waits for the slowest rank, which no point has."""
    fed_by: Ints = field(default_factory=_none)
    """Further rows that feed a collective, after the one in `feeds`: on gloo a root feeds one for each
    receiver."""
    fed: Ints = field(default_factory=_none)
    """The numbers of those."""

    def of_rank(self, place: int) -> Ints:
        """Return the points of a rank, in order."""
        return np.flatnonzero(self.rank == place)


@once
def graphs(context: Context) -> tuple[Graph, ...]:
    """Return the graphs of the steps whose ranks can be compared, as many as `MOST_ROWS` allows.

    If a seen rank has no row of its own, its step is left out. So are those of a live run that hold time
    which their durations do not, unless all do.
    """
    return _graphs(context, MOST_ROWS)


@once
def graphs_with_messages(context: Context) -> tuple[Graph, ...]:
    """Return the same, with messages between hosts too; the `index` of such a row is `NO_ROW`."""
    rows = message_rows(context)
    return graphs(context) if rows.empty else _graphs(context, MOST_ROWS, rows)


def long_graphs(context: Context) -> tuple[Graph, ...]:
    """Return the same, as many as `MOST_ROWS_ALONE` allows."""
    return graphs(context) if len(context.in_alike) <= MOST_ROWS else _graphs(context, MOST_ROWS_ALONE)


def _graphs(context: Context, most_rows: int, between_hosts: pd.DataFrame | None = None) -> tuple[Graph, ...]:
    frame = context.in_alike[list(COLUMNS)]
    timed = frame["arrival_ns"].notna() & frame["duration_ns"].notna() & frame["exposed_ns"].notna()
    if frame.empty or not timed.all():
        # A collective without times holds up nobody knows whom.
        return ()
    # Lead-ups count all of a rank's collectives, those outside steps too.
    idle = idle_until(context.collectives, context.leadups).reindex(frame.index)
    frame = with_columns(frame, idle_until_ns=idle.to_numpy(dtype=np.int64))
    step_rows = context.step_rows[list(OF_STEPS)].set_index(["step", "rank"])
    made: list[Graph] = []
    torn: list[Graph] = []
    rows_left = most_rows
    for step, rows in frame.groupby("step"):
        rows_left -= len(rows)
        ends = (
            step_rows.loc[int(str(step))] if int(str(step)) in step_rows.index.get_level_values(0) else None
        )
        # Nor one that a damaged file holds twice.
        if (
            rows_left < 0
            or ends is None
            or not ends.index.is_unique
            or set(ends.index) != set(rows["rank"].unique())
        ):
            continue
        if between_hosts is not None:
            rows = with_messages(rows, keep(between_hosts, between_hosts["step"] == step))
        graph = _graph(context, int(str(step)), rows, ends)
        (torn if context.ledger.run.source == "live" and _torn(context, rows, ends) else made).append(graph)
    return tuple(made or torn)


def _torn(context: Context, rows: pd.DataFrame, ends: pd.DataFrame) -> bool:
    """Whether a rank's step holds time that its duration does not, as that of a gradient check.

    Its collectives then come after its own end, and no record says where the time went.
    """
    rank = ends.index.to_numpy(dtype=np.int64)
    began = context.clocks.corrected(rank, ends["start_ns"].to_numpy(dtype=np.int64))
    lasts = ends["duration_ns"].to_numpy(dtype=np.float64)
    last = rows.groupby("rank")["arrival_ns"].max().reindex(rank).to_numpy(dtype=np.float64)
    return bool((last - began > lasts * (1 + MOST_BEYOND)).any())


def _graph(context: Context, step: int, rows: pd.DataFrame, ends: pd.DataFrame) -> Graph:
    ranks = tuple(sorted(int(rank) for rank in ends.index))
    start = rows["arrival_ns"].to_numpy(dtype=np.int64)
    end = start + rows["duration_ns"].to_numpy(dtype=np.int64)
    messages = delivered(rows, start, end)
    start, exposed = messages.start_ns, messages.exposed_ns
    known_end = messages.end_ns
    depends = with_held(rows, start, known_end, *dependencies(rows, start, known_end))
    idle = rows["idle_until_ns"].to_numpy(dtype=np.int64)
    rank = rows["rank"].to_numpy(dtype=np.int64)
    began = context.clocks.corrected(
        np.array(ranks, dtype=np.int64), ends.loc[list(ranks), "start_ns"].to_numpy(dtype=np.int64)
    )
    points = []
    for place, number in enumerate(ranks):
        here = np.flatnonzero(rank == number)
        about = ends.loc[number]
        finish = int(began[place]) + int(about["duration_ns"])
        moments = np.concatenate([start[here], end[here]])
        row = np.concatenate([here, here])
        done = np.repeat([False, True], len(here))
        # At one instant: what ends there, then what begins there, then what takes no time at all.
        kind = np.where(done, np.where(end[row] > start[row], 0, 2), 1)
        order = np.lexsort((row, kind, moments))
        moments, row, done = moments[order], row[order], done[order]
        spans = blocked(zip(start[here].tolist(), end[here].tolist(), exposed[here].tolist(), strict=True))
        times = np.concatenate([[began[place]], moments, [max(finish, int(moments.max()))]])
        own_ns = np.maximum(0, np.diff(times - blocked_until(spans, times)))
        gaps = np.minimum(np.maximum(0, np.diff(idle[row], prepend=idle[row[0]])), own_ns[:-1])
        # Lead-ups do not separate idle time before the first and after the last collective.
        before = int(np.clip(int(about["idle_ns"]) - gaps.sum(), 0, own_ns[-1]))
        points.append((row, done, own_ns, np.append(gaps, before)))
    # Idle time at the end is waiting for the slowest rank, except for that rank's own idle time.
    least = min(int(gaps[-1]) for *_, gaps in points) if len(context.leadups) else None
    left_out = np.zeros(len(ranks), dtype=np.int64)
    if least is not None:
        for place, (*_, own_ns, gaps) in enumerate(points):
            left_out[place] = gaps[-1] - least
            own_ns[-1] -= left_out[place]
            gaps[-1] = least
    index = rows.index.to_numpy(dtype=np.int64)
    return _joined(step, ranks, began - began.min(), points, index, depends, left_out)


def _joined(
    step: int,
    ranks: tuple[int, ...],
    begin: Ints,
    points: Sequence[tuple[Ints, Bools, Ints, Ints]],
    index: Ints,
    depends: Dependencies,
    left_out: Ints,
) -> Graph:
    rank = np.repeat(np.arange(len(ranks)), [len(own_ns) for _, _, own_ns, _ in points])
    row = np.concatenate([np.append(rows, -1) for rows, _, _, _ in points])
    done = np.concatenate([np.append(each, False) for _, each, _, _ in points])
    order = in_order(rank, row, done, depends.match, depends.feeds, depends.fed_by, depends.fed)
    own_ns = np.concatenate([each for _, _, each, _ in points])
    idle = np.concatenate([each for _, _, _, each in points])
    points_in_order = (rank[order], row[order], done[order], own_ns[order], idle[order])
    by_row = (depends.match, depends.feeds, depends.moved_ns)
    more = (depends.fed_by, depends.fed)
    return Graph(step, ranks, begin, *points_in_order, index, *by_row, left_out, *more)


def dependencies(rows: pd.DataFrame, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Return for each row the number of the collective that it waits for and of the one that waits for it, -1
    for none. The third array is its time from the last arrival on.

    A collective that somebody left before another arrived keeps only those rows that cannot have left early;
    the others wait for nobody. In rooted operations receivers wait for the root, or the root for all; more is
    known of those on gloo (see `with_held`).
    """
    match = rows["match_id"].to_numpy(dtype=np.int64, na_value=-1)
    _, code = np.unique(match, return_inverse=True)
    is_rooted = rows["op"].isin(ROOTED).to_numpy(dtype=bool)
    is_root = (rows["rank"] == rows["root"]).to_numpy(dtype=bool, na_value=False)
    receives = rows["op"].isin(FROM_ROOT).to_numpy(dtype=bool) != is_root
    sends = ~is_rooted | ~receives
    last = np.full(int(code.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, code[sends], start[sends])
    fit = (match >= 0) & (end + SLACK_NS >= last[code])
    # If a root, or its waiting, is unknown, no rank is known to wait for another.
    is_certain = ~is_rooted | rows["wait_ns"].notna().to_numpy(dtype=bool)
    waits = fit & is_certain & (~is_rooted | receives)
    feeds = is_certain & np.where(is_rooted, (match >= 0) & ~receives, fit)
    moved = np.maximum(0, end - np.where(waits, np.maximum(start, last[code]), start))
    return np.where(waits, code, -1), np.where(feeds, code, -1), moved
