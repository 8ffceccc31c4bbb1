"""The least time a step needs for its collectives, however well they overlap with anything.

Collectives of one group run one after another: they share a communicator, which works off its queue in order.
Collectives of different groups may run at once, and so may sends and receives of different peers and
directions. So each group is a queue, for sends and receives each op and peer of it. In any schedule a step
lasts at least as long as the least times of its longest queue together. The bound is the largest of the
queues' sums. All queues one after the other is no bound, but what a step without any overlap would need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import changes, keep, numbered

Floats = npt.NDArray[np.float64]

_DIVIDED: Final = ["compute_ns", "duration_ns", "capture_ns", "exposed_comm_ns"]


class CommBounds(Struct, frozen=True):
    """A rank's mean step; 0 without collectives, None if the least time of every one is unknown."""

    light_ns: float | None
    floor_ns: float | None
    serial_ns: float | None
    known_share: float | None
    """Share of the collectives with a floor; None without collectives."""
    hidden_ns: float
    """In the group with most of it: time during which a collective ran and was not exposed."""
    count: int = 0
    """Collectives in all the steps."""
    light_count: int = 0
    floor_count: int = 0
    """Those of them with a least time: what the bounds count."""


NO_COLLECTIVES = CommBounds(0.0, 0.0, 0.0, None, 0.0)


def free_compute_ns(steps: pd.DataFrame, comm: CommBounds) -> float:
    """Return how long a rank computes in a mean one of `steps`, its rows, while that hides no communication.

    Exposed communication can be hidden behind that and no more. Live on an accelerator, the device's work in
    the rest of the step is unknown, so all of it may be compute.
    """
    mean = {name: float(pd.Series(_floats(steps[name])).mean()) for name in _DIVIDED}
    computed = mean["compute_ns"]
    if not computed:
        computed = mean["duration_ns"] - mean["capture_ns"] - mean["exposed_comm_ns"]
    return max(0.0, computed - comm.hidden_ns)


@once
def most_free_compute_ns(context: Context) -> float | None:
    """Return `free_compute_ns` of the surveyed steps, on the rank with most; None if none was surveyed."""
    rows = context.surveyed_rows[["rank", *_DIVIDED]]
    if rows.empty:
        return None
    comm = comm_bounds(context, context.surveyed)
    return max(
        free_compute_ns(keep(rows, rows["rank"] == rank), comm.get(rank, NO_COLLECTIVES))
        for rank in sorted({int(each) for each in rows["rank"].unique()})
    )


def comm_bounds(context: Context, steps: Sequence[int]) -> dict[int, CommBounds]:
    """Return the bounds of each rank that has collectives in these steps."""
    key = (comm_bounds, tuple(steps))
    if key not in context.memo:
        context.memo[key] = _bounds(context, steps)
    bounds: dict[int, CommBounds] = context.memo[key]
    return bounds


def _bounds(context: Context, steps: Sequence[int]) -> dict[int, CommBounds]:
    frame = context.collectives
    frame = keep(frame, frame["step"].isin(steps))
    if frame.empty:
        return {}
    rank, step = (frame[name].to_numpy(dtype=np.int64) for name in ("rank", "step"))
    peers = frame["op"].isin(PEER_OPS)
    queues = frame[["group", "group_id"]].assign(op=frame["op"].where(peers), peer=frame["root"].where(peers))
    queue = numbered(queues, ["group", "group_id", "op", "peer"])
    order = np.lexsort((queue, step, rank))
    by_queue = np.flatnonzero(changes(rank[order], step[order], queue[order]))
    code = np.empty(len(order), dtype=np.int64)
    code[order] = np.repeat(np.arange(len(by_queue)), np.diff(by_queue, append=len(order)))

    def total(values: Floats | npt.NDArray[np.bool_]) -> Floats:
        """Return the sum of the known values of each queue of a rank's step."""
        return np.bincount(code, weights=np.nan_to_num(values)).astype(np.float64)

    span, exposed = _floats(frame["duration_ns"]), _floats(frame["exposed_ns"])
    transfer = _floats(frame["transfer_ns"])
    took = np.where(np.isnan(transfer), span, transfer)
    end = _floats(frame["arrival_ns"]) + span
    # Launched as one, or by a library of several threads, they did run at once: together no longer than so.
    busy = _busy_ns(code, end, took)
    light, floor = (_floats(frame[name]) for name in ("light_ns", "floor_ns"))
    is_lit, is_known = ~np.isnan(light), ~np.isnan(floor)
    # Close below its floor a transfer does not refute it, but no sum of floors may exceed what it took.
    lights, floors = (
        np.minimum(total(np.where(took < bound, took, bound)), busy) for bound in (light, floor)
    )
    # One span that several share hides once. Its exposed part was divided among them, so it adds up.
    alone = np.maximum(_busy_ns(code, end, span) - total(exposed), 0.0)
    hidden = np.minimum(total(np.fmax(span - exposed, 0.0)), alone)
    first = order[by_queue]
    by_step = np.flatnonzero(changes(rank[first], step[first]))
    rank_of = rank[first][by_step]
    by_rank = np.flatnonzero(changes(rank_of))
    longest_light, longest_floor, most_hidden = (
        np.add.reduceat(np.maximum.reduceat(values, by_step), by_rank) for values in (lights, floors, hidden)
    )
    of_rank = np.searchsorted(rank_of[by_rank], rank)
    rows, known, lit = (
        np.bincount(of_rank, weights=counted) for counted in (np.ones(len(rank)), is_known, is_lit)
    )
    serial = np.add.reduceat(np.add.reduceat(floors, by_step), by_rank)
    # A rank may have no collective in a step that it finished: that counts, as a zero.
    finished = (
        keep(context.step_rows, context.step_rows["step"].isin(steps)).groupby("rank")["step"].nunique()
    )
    bounds = {}
    for place, of in enumerate(rank_of[by_rank].tolist()):
        number = int(finished.get(of, 0))
        if not number:
            continue
        bounds[of] = CommBounds(
            light_ns=float(longest_light[place]) / number if lit[place] else None,
            floor_ns=float(longest_floor[place]) / number if known[place] else None,
            serial_ns=float(serial[place]) / number if known[place] else None,
            known_share=float(known[place]) / float(rows[place]),
            hidden_ns=float(most_hidden[place]) / number,
            count=int(rows[place]),
            light_count=int(lit[place]),
            floor_count=int(known[place]),
        )
    return bounds


def _busy_ns(code: npt.NDArray[np.int64], end: Floats, took: Floats) -> Floats:
    """Return how long any transfer of each queue ran in its step; infinite where a time is unknown."""
    begin = end - took
    number = int(code.max()) + 1
    rows = np.flatnonzero(~np.isnan(begin))
    rows = rows[np.lexsort((begin[rows], code[rows]))]
    queue_of, upto = code[rows], end[rows]
    # The latest end so far of the same queue: what lies before it was counted.
    before = np.full(len(rows), -np.inf)
    if len(rows):
        ends = np.sort(upto)
        latest = np.maximum.accumulate(queue_of * len(ends) + np.searchsorted(ends, upto))
        before[1:] = np.where(queue_of[1:] == queue_of[:-1], ends[latest % len(ends)][:-1], -np.inf)
    spent = np.maximum(0.0, upto - np.maximum(begin[rows], before))
    busy = np.bincount(queue_of, weights=spent, minlength=number)
    unknown = np.bincount(code[np.isnan(begin)], minlength=number) > 0
    return np.where(unknown, np.inf, busy)


def _floats(column: pd.Series[int]) -> Floats:
    return column.to_numpy(dtype=np.float64, na_value=np.nan)
