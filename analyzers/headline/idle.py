"""The part of the headline that speaks of a device standing idle, where that is what costs."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stages import pipeline_imbalance
from shardtoll.analyzers.findings.stragglers.lateness import host_computes
from shardtoll.analyzers.headline.step_words import step_word
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger.words.human import duration, percent

IDLE_SHARE: Final = 0.2
"""Share of all ranks' steps from which idle time is the matter, if it is also `MORE` times what
communication costs."""

MORE: Final = 3.0

REASONS: Final = {
    "data": "Data loading is the matter, not communication",
    "host-sync": "Waits of the host for the device are the matter, not communication",
    "bubble": "Pipeline stages stand idle, and not for the network",
    "host": "The host is the matter, not communication",
}
"""Kind of stall -> what to say where it is more than half of the idle time."""


def _shares(context: Context) -> tuple[float, float]:
    """Return the shares of idle time and of exposed communication in all ranks' steps without recording."""
    rows = context.parts_rows
    total = float((rows["duration_ns"] - rows["capture_ns"]).sum())
    if total <= 0:
        return 0.0, 0.0
    return float(rows["idle_ns"].sum()) / total, float(rows["exposed_comm_ns"].sum()) / total


def besides(context: Context) -> str:
    """Return a clause on idle time that is more than exposed communication, though it does not lead."""
    share, comm_share = _shares(context)
    if share < IDLE_SHARE or share <= comm_share:
        return ""
    return f"; besides, {percent(share)} is idle"


def clause(context: Context) -> str | None:
    """Return what idle time says, with its figures; None where communication or compute costs more.

    Over watched steps, if surveyed ones tell how they divide; else over the surveyed ones.
    """
    share_idle, comm_share = _shares(context)
    if share_idle < IDLE_SHARE or share_idle < MORE * comm_share:
        return None
    steps, stalls = context.parts_rows, context.stalls_in_steps
    idle = float(context.surveyed_rows["idle_ns"].sum())
    lost = keep(stalls, stalls["step"].isin(context.surveyed)).groupby("kind")["lost_ns"].sum()
    lost_by_kind = {kind: float(lost.get(kind, 0)) for kind in REASONS}
    most = max(lost_by_kind, key=lambda kind: lost_by_kind[kind])
    head = REASONS[most] if lost_by_kind[most] > idle / 2 else "Idle time is the matter, not communication"
    own_ns = steps["duration_ns"] - steps["capture_ns"]
    mean = steps.assign(own_ns=own_ns).groupby("rank")[["own_ns", "idle_ns"]].mean()
    row = int(np.argmax(mean["idle_ns"].to_numpy(dtype=np.float64)))
    worst = mean.iloc[row]
    who = f"rank {mean.index[row]}" if host_computes(context) else f"rank {mean.index[row]}'s device"
    does = "runs no operator" if host_computes(context) else "is idle"
    share = percent(float(worst["idle_ns"]) / float(worst["own_ns"]))
    fact = (
        f"{who} {does} for {duration(float(worst['idle_ns']))} ({share}) of its "
        f"{duration(float(worst['own_ns']))} {step_word(context)}"
    )
    if most == "bubble":
        uneven = pipeline_imbalance.worst(context)
        if uneven is not None:
            fact = f"{fact}, while {pipeline_imbalance.clause(uneven)}"
    return f"{head}: {fact}"
