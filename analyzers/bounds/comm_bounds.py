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
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep, numbered

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
    mean = steps[_DIVIDED].astype("float64").mean()
    computed = float(mean["compute_ns"])
    if not computed:
        computed = float(mean["duration_ns"] - mean["capture_ns"] - mean["exposed_comm_ns"])
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
    times = pd.DataFrame({name: frame[name].to_numpy(dtype=np.int64) for name in ("rank", "step")})
    peers = frame["op"].isin(PEER_OPS)
    queue = frame[["group", "group_id"]].assign(op=frame["op"].where(peers), peer=frame["root"].where(peers))
    times["queue"] = numbered(queue, ["group", "group_id", "op", "peer"])
    took = _floats(frame["transfer_ns"].fillna(frame["duration_ns"]))
    for name in ("light_ns", "floor_ns"):
        bound = _floats(frame[name])
        # Close below its floor a transfer does not refute it, but no sum of floors may exceed what it took.
        times[name] = np.where(took < bound, took, bound)
    times["rows"] = 1
    times["known"] = ~np.isnan(times["floor_ns"])
    times["lit"] = ~np.isnan(times["light_ns"])
    hidden = _floats(frame["duration_ns"]) - _floats(frame["exposed_ns"])
    times["hidden"] = np.fmax(hidden, 0.0)
    times["exposed"] = _floats(frame["exposed_ns"])
    times["spanned"] = _busy_ns(frame, times, _floats(frame["duration_ns"]))
    times["busy"] = _busy_ns(frame, times, took)
    by_queue = times.groupby(["rank", "step", "queue"])
    queues = by_queue[["light_ns", "floor_ns", "rows", "known", "lit", "hidden", "exposed"]].sum()
    # Launched as one, or by a library of several threads, they did run at once: together no longer than so.
    busy = by_queue["busy"].first()
    for name in ("light_ns", "floor_ns"):
        queues[name] = np.minimum(queues[name], busy)
    # One span that several share hides once. What of it is exposed was dealt out among them, so it adds up.
    alone = (by_queue["spanned"].first() - queues["exposed"]).clip(lower=0)
    queues["hidden"] = np.minimum(queues["hidden"], alone)
    by_step = queues.groupby(["rank", "step"])
    most = by_step[["light_ns", "floor_ns", "hidden"]].max()
    whole = by_step[["floor_ns", "rows", "known", "lit"]].sum()
    # A rank may have no collective in a step that it finished: that counts, as a zero.
    finished = (
        keep(context.step_rows, context.step_rows["step"].isin(steps)).groupby("rank")["step"].nunique()
    )
    most, whole = most.groupby("rank").sum(), whole.groupby("rank").sum()
    bounds = {}
    for rank in whole.index:
        number = int(finished.get(rank, 0))
        if not number:
            continue
        longest, sums = most.loc[rank], whole.loc[rank]
        complete, lit = bool(sums["known"]), bool(sums["lit"])
        bounds[int(rank)] = CommBounds(
            light_ns=float(longest["light_ns"]) / number if lit else None,
            floor_ns=float(longest["floor_ns"]) / number if complete else None,
            serial_ns=float(sums["floor_ns"]) / number if complete else None,
            known_share=float(sums["known"]) / float(sums["rows"]),
            hidden_ns=float(longest["hidden"]) / number,
            count=int(sums["rows"]),
            light_count=int(sums["lit"]),
            floor_count=int(sums["known"]),
        )
    return bounds


def _busy_ns(
    frame: pd.DataFrame, times: pd.DataFrame, took: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return how long any transfer of the row's queue ran in its step; infinite where a time is unknown."""
    queue = numbered(times, ["rank", "step", "queue"])
    end = _floats(frame["arrival_ns"]) + _floats(frame["duration_ns"])
    number = int(queue.max()) + 1
    busy = np.zeros(number)
    rows = np.flatnonzero(~np.isnan(end - took))
    rows = rows[np.lexsort((end[rows] - took[rows], queue[rows]))]
    queue_of, upto = queue[rows], end[rows]
    # The latest end so far of the same queue: what lies before it was counted.
    before = pd.Series(upto).groupby(queue_of).cummax().groupby(queue_of).shift(fill_value=-np.inf).to_numpy()
    np.add.at(busy, queue_of, np.maximum(0.0, upto - np.maximum(upto - took[rows], before)))
    unknown = np.bincount(queue[np.isnan(end - took)], minlength=number) > 0
    busy_of: np.ndarray[tuple[int], np.dtype[np.float64]] = np.where(unknown, np.inf, busy)[queue]
    return busy_of


def _floats(column: pd.Series[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return column.to_numpy(dtype=np.float64, na_value=np.nan)
