"""Messages between hosts as rows of a step's graph: collectives that they have no times of their own for.

A receiver stands from when its device has nothing left to do. The sender is there when its device has done
what was launched before its call. It never waits, so such a message is like a broadcast of its sender.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.handed_over import messages
from shardtoll.analyzers.shared.memo import once

Floats = npt.NDArray[np.float64]

NO_ROW = -1
"""Index of a row that is none of the collectives' frame."""


@once
def message_rows(context: Context) -> pd.DataFrame:
    """Return two rows a message, of its sender and its receiver; empty if the job has none."""
    made = messages(context)
    if made is None or not len(made.sent):
        none: pd.DataFrame = pd.DataFrame()
        return none
    events = context.ledger.frame("events")
    rank = events["rank"].to_numpy(dtype=np.int64)
    start = context.clocks.corrected(rank, events["start_ns"].to_numpy(dtype=np.int64)).astype(np.float64)
    ranks = np.unique(rank)
    place = np.searchsorted(ranks, rank)
    busy = [_Busy(events[place == number], start[place == number]) for number in range(len(ranks))]
    sides = zip(made.source.tolist(), made.sent.tolist(), strict=True)
    there = np.array([max(at, busy[number].until(at)) for number, at in sides])
    calls = zip(made.target.tolist(), made.called.tolist(), strict=True)
    stood = np.array([max(at, busy[number].until(at)) for number, at in calls])
    # A message that comes while the device is busy makes it wait for nothing.
    got = np.maximum(made.got, stood)
    number = np.arange(len(there))
    beyond = int(context.in_alike["match_id"].max() if context.in_alike["match_id"].notna().any() else -1)
    rows: pd.DataFrame = pd.DataFrame(
        {
            "step": np.tile(made.step, 2),
            "rank": ranks[np.concatenate([made.source, made.target])],
            "root": np.tile(ranks[made.source], 2),
            "arrival_ns": np.concatenate([there, stood]).astype(np.int64),
            "duration_ns": np.concatenate([np.zeros(len(there)), got - stood]).astype(np.int64),
            "match_id": np.tile(beyond + 1 + number, 2),
        }
    )
    made_rows: pd.DataFrame = rows.assign(
        op="broadcast",
        start_ns=rows["arrival_ns"],
        issue_ns=rows["arrival_ns"],
        exposed_ns=rows["duration_ns"],
        wait_ns=0,
        root_place=-1,
    )
    return made_rows


def with_messages(rows: pd.DataFrame, of_step: pd.DataFrame) -> pd.DataFrame:
    """Return a step's rows and those of its messages, which are idle for as long as the row before them."""
    columns = [*of_step.columns, "idle_until_ns"]
    both = pd.concat([rows[columns], of_step.set_axis([NO_ROW] * len(of_step))])
    both = both.sort_values(["rank", "arrival_ns"], kind="stable")
    idle = both.groupby("rank")["idle_until_ns"].ffill().fillna(0)
    made: pd.DataFrame = both.assign(idle_until_ns=idle.astype(np.int64))
    return made


class _Busy:
    """Until when a rank's device is busy with what was launched by an instant."""

    def __init__(self, events: pd.DataFrame, start: Floats) -> None:
        end = start + events["duration_ns"].to_numpy(dtype=np.float64)
        launched = events["launch"].notna().to_numpy(dtype=bool)
        at = pd.Series(start, index=events["index"].to_numpy(dtype=np.int64))
        asked = at.reindex(events["launch"][launched].astype("int64")).to_numpy(dtype=np.float64)
        order = np.argsort(asked, kind="stable")
        self._asked = asked[order]
        self._end = np.maximum.accumulate(end[launched][order]) if len(order) else end[:0]

    def until(self, instant: float) -> float:
        """Return when the device has done what was launched before this instant."""
        place = int(np.searchsorted(self._asked, instant, "right")) - 1
        return float(self._end[place]) if place >= 0 else -np.inf
