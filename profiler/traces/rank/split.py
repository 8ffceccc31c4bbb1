"""Who gets each nanosecond of a rank's timeline: exact, in whole numbers, nothing lost.

The timeline is cut where anything starts or ends. Each segment goes to the first layer that is busy in it.
Within the layer it goes to the earliest step that has work in it. An exposed segment of communication is
split evenly among the collectives in flight, each share going to its collective's step. Idle segments go to
the step whose host window holds them: nothing is launched then that could run. If something was launched
already and only begins later, they go to its step: the host is ahead.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from shardtoll.profiler.traces.collectives.steps import Steps
from shardtoll.profiler.traces.file.trace_columns import I8, I64

COMPUTE: Final = 0
COMM: Final = 1
LOOKALIKE: Final = 2
MOVE: Final = 3
IDLE: Final = 4
"""Layers of an instant, the first that is busy wins."""


_BEFORE_NS: Final = -(2**62)
"""Before every instant of a trace."""


class Busy(Struct, frozen=True):
    """Pieces of work in columns: their time, and the place of the step that launched them."""

    start_ns: I64
    end_ns: I64
    owner: I64


class Gaps(Struct, frozen=True):
    """Times without device work before a piece of work, in order."""

    start_ns: I64
    end_ns: I64
    queued_ns: I64
    """From when on the work that ends the gap had been launched; never after the gap."""
    owner: I64
    """Step of that work."""


class Split(Struct, frozen=True):
    """The timeline in segments, and what each step and each collective got of it."""

    edges_ns: I64
    """One more than there are segments."""
    layer: I8
    owner: I64
    """Step of each segment; of exposed communication that of one of its collectives."""
    exposed_ns: I64
    """Exposed time of each collective."""
    parts_ns: I64
    """Row: step, the last for none; column: layer."""
    first_ns: I64
    """First instant of each step; the end of the timeline for one that has none."""


def gaps(start_ns: I64, end_ns: I64, queued_ns: I64, owner: I64, steps: Steps) -> Gaps:
    """Return the gaps before pieces of work given in columns; `queued_ns` is when each was launched.

    If several begin together the one launched first ended the gap. The first gap has no beginning. Gaps in
    which the host is in the step of the work that follows are left out: nothing changes there.
    """
    order = np.lexsort((queued_ns, start_ns))
    begun = start_ns[order]
    done = np.full(len(order), _BEFORE_NS, np.int64)
    done[1:] = np.maximum.accumulate(end_ns[order])[:-1]
    heads = np.flatnonzero(begun > done)
    rows = order[heads]
    opened, closed = done[heads], begun[heads]
    queued = np.clip(queued_ns[rows], opened, closed)
    owner_of = owner[rows]
    counts = (steps.at(queued) != owner_of) | (steps.at(closed - 1) != owner_of)
    opened, closed, queued, owner_of = (column[counts] for column in (opened, closed, queued, owner_of))
    return Gaps(opened, closed, queued, owner_of)


def split(
    layers: tuple[Busy, Busy, Busy, Busy],
    steps: Steps,
    start_ns: int,
    end_ns: int,
    between: Gaps | None = None,
) -> Split:
    """Cut [start_ns, end_ns) into layers and steps; `between` is known if there is a device.

    The rows of `layers[COMM]` stand in the order of the ledger. Work that reaches beyond the ends
    stretches them.
    """
    ends: list[I64] = [np.array([start_ns, end_ns], np.int64), steps.start_ns, steps.end_ns]
    if between is not None:
        ends.append(np.clip(between.queued_ns, start_ns, end_ns))
    edges = ordered(
        np.concatenate([*ends, *(times for busy in layers for times in (busy.start_ns, busy.end_ns))])
    )
    lengths = np.diff(edges)
    layer = np.full(len(lengths), IDLE, np.int8)
    owner = steps.at(edges[:-1])
    if between is not None and len(between.owner):
        gap = np.searchsorted(between.start_ns, edges[:-1], side="right") - 1
        queued = (gap >= 0) & (edges[:-1] < between.end_ns[gap]) & (edges[:-1] >= between.queued_ns[gap])
        owner[queued] = between.owner[gap[queued]]
    for number, busy in enumerate(layers):
        _paint(number, busy, edges, layer, owner)
    exposed, opens_ns = _shares(layers[COMM], edges, lengths, layer)
    parts = np.zeros((steps.none + 1, IDLE + 1), np.int64)
    first = np.full(steps.none + 1, edges[-1], np.int64)
    others = layer != COMM
    np.add.at(parts, (owner[others], layer[others]), lengths[others])
    times, where = np.unique(owner[others], return_index=True)
    first[times] = edges[:-1][others][where]
    np.add.at(parts, (layers[COMM].owner, np.full(len(exposed), COMM)), exposed)
    had = exposed > 0
    np.minimum.at(first, layers[COMM].owner[had], opens_ns[had])
    return Split(edges, layer, owner, exposed, parts, first)


def ordered(times_ns: I64) -> I64:
    """Return the distinct times in order; several times as fast as `np.unique` on millions."""
    times = np.sort(times_ns)
    keep = np.ones(len(times), np.bool_)
    keep[1:] = times[1:] != times[:-1]
    return times[keep]


def _paint(number: int, busy: Busy, edges: I64, layer: I8, owner: I64) -> None:
    """Give the segments that are still free to this layer, to earlier steps first."""
    opens = np.searchsorted(edges, busy.start_ns)
    closes = np.searchsorted(edges, busy.end_ns)
    order = np.argsort(busy.owner, kind="stable")
    cuts = np.flatnonzero(np.diff(busy.owner[order])) + 1
    for rows in np.split(order, cuts) if len(order) else []:
        low, high = int(opens[rows].min()), int(closes[rows].max())
        size = high - low + 1
        running = np.cumsum(
            np.bincount(opens[rows] - low, minlength=size) - np.bincount(closes[rows] - low, minlength=size)
        )[:-1]
        takes = low + np.flatnonzero((running > 0) & (layer[low:high] == IDLE))
        layer[takes] = number
        owner[takes] = busy.owner[rows[0]]


def _shares(comm: Busy, edges: I64, lengths: I64, layer: I8) -> tuple[I64, I64]:
    """Return each collective's share of the exposed time, and when the first of it was.

    Pieces are cut where a collective starts or ends, or exposure does; what does not divide goes to
    the earlier rows.
    """
    opens, closes = np.searchsorted(edges, comm.start_ns), np.searchsorted(edges, comm.end_ns)
    real = closes > opens
    size = len(edges)
    turns = np.bincount(opens[real], minlength=size) - np.bincount(closes[real], minlength=size)
    in_flight = np.cumsum(turns)[:-1]
    is_edge = np.zeros(size, np.bool_)
    is_edge[opens[real]] = is_edge[closes[real]] = True
    exposed = layer == COMM
    begins = exposed & is_edge[:-1]
    begins[1:] |= exposed[1:] & ~exposed[:-1]
    begins[:1] |= exposed[:1]
    heads = np.flatnonzero(begins)
    if not len(heads):
        return np.zeros(len(opens), np.int64), np.full(len(opens), edges[-1], np.int64)
    piece_ns = np.add.reduceat(np.where(exposed, lengths, 0), heads)
    each_ns, over = np.divmod(piece_ns, in_flight[heads])
    low, high = np.searchsorted(heads, opens), np.searchsorted(heads, closes)
    sums = np.concatenate(([0], np.cumsum(each_ns)))
    shares = sums[high] - sums[low] + _remainders(low, high, over)
    opens_ns = edges[heads[np.minimum(low, len(heads) - 1)]]
    return shares, opens_ns


def _remainders(low: I64, high: I64, over: I64) -> I64:
    """Return what each row gets of the nanoseconds that did not divide: `over[p]` rows of piece p get one."""
    uneven = np.flatnonzero(over)
    first, last = np.searchsorted(uneven, low), np.searchsorted(uneven, high)
    counts = last - first
    row = np.repeat(np.arange(len(low)), counts)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    order = np.argsort(piece, kind="stable")
    piece, row = piece[order], row[order]
    rank = np.arange(len(piece)) - np.searchsorted(piece, piece)
    return np.bincount(row[rank < over[uneven[piece]]], minlength=len(low)).astype(np.int64)
