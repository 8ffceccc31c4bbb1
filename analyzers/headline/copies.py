"""The part of the headline that speaks of memory copies, if those cost most."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.headline.step_words import step_word
from shardtoll.analyzers.shared.tally import keep, text
from shardtoll.ledger.words.human import duration, percent

COPY_SHARE: Final = 0.2
"""Share of all ranks' steps from which exposed copies lead. Communication must cost less than a third of
them, and idle time less than they do."""

MORE: Final = 3.0


def shares(context: Context) -> tuple[float, float, float]:
    """Return the shares of exposed copies, idle time and exposed communication in all ranks' steps."""
    rows = context.parts_rows
    total = float((rows["duration_ns"] - rows["capture_ns"]).sum())
    if total <= 0:
        return 0.0, 0.0, 0.0
    copies, idle, comm = (
        float(rows[name].sum()) / total for name in ("exposed_copy_ns", "idle_ns", "exposed_comm_ns")
    )
    return copies, idle, comm


def clause(context: Context) -> str | None:
    """Return what copies cost, with figures; None if communication or idle time costs more."""
    copies, idle, comm = shares(context)
    if copies < COPY_SHARE or copies < MORE * comm or copies < idle:
        return None
    rows = context.parts_rows
    own_ns = rows["duration_ns"] - rows["capture_ns"]
    mean = rows.assign(own_ns=own_ns).groupby("rank")[["own_ns", "exposed_copy_ns", "idle_ns"]].mean()
    row = int(np.argmax(mean["exposed_copy_ns"].to_numpy(dtype=np.float64)))
    worst, rank = mean.iloc[row], int(mean.index[row])
    took, copied, idled = (float(worst[name]) for name in ("own_ns", "exposed_copy_ns", "idle_ns"))
    kind = _kind(context, rank)
    verb = "take" if kind is None else "takes"
    besides = f"; it is idle for another {percent(idled / took)}" if idled >= COPY_SHARE * took else ""
    what = "copies" if kind is None else kind
    return (
        f"Memory copies cost most: {what} {verb} {duration(copied)} "
        f"({percent(copied / took)}) of rank {rank}'s {duration(took)} {step_word(context)} and no compute "
        f"hides them{besides}"
    )


def _kind(context: Context, rank: int) -> str | None:
    """Return the name of the copies that cost the rank most."""
    stalls = context.stalls_in_steps
    mine = keep(stalls, (stalls["kind"] == "copy") & (stalls["rank"] == rank))
    by_name = mine.groupby("name")["lost_ns"].sum()
    return None if by_name.empty else text(by_name.index[int(np.argmax(by_name.to_numpy(dtype=np.float64)))])


def besides(context: Context) -> str:
    """Return a clause on copies that cost more than communication, though they do not lead."""
    copies, _, comm = shares(context)
    return f"; another {percent(copies)} is memory copies" if copies >= max(COPY_SHARE, comm) else ""
