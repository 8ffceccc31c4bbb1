"""One sentence: is the network at fault, a rank, or neither."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.lateness import LEAST_LATE_NS, late_to, waits
from shardtoll.analyzers.peers import PEER_OPS
from shardtoll.analyzers.pipeline_bubble import message_waits
from shardtoll.analyzers.straggler import named
from shardtoll.analyzers.tally import keep
from shardtoll.analyzers.words import duration, percent, times

LEAST_SHARE: Final = 0.05
"""Share of all ranks' steps below which communication is not the matter."""

IDLE_SHARE: Final = 0.2
SLOW_FACTOR: Final = 2.0
"""Transfers this many times above their floor are the network's fault; below, they do what it allows."""


def sentence(context: Context) -> str | None:
    """Return the sentence; None where no step was recorded, so that there is nothing to say.

    Shares of waiting and moving are over all seen ranks together, as the late rank itself waits least.
    """
    steps = context.step_rows
    total = float(steps["duration_ns"].sum())
    if steps.empty or total <= 0 or not context.step_ns:
        return None
    mean = steps.groupby("rank")[["duration_ns", "exposed_comm_ns"]].mean()
    at = int(np.argmax(mean["duration_ns"].to_numpy(dtype=np.float64)))
    slowest, of_slowest = int(mean.index[at]), mean.iloc[at]
    share = float(steps["exposed_comm_ns"].sum()) / total
    took = duration(float(of_slowest["duration_ns"]))
    fact = (
        f"rank {slowest}, the slowest, is exposed to communication for "
        f"{duration(float(of_slowest['exposed_comm_ns']))} of its {took} step"
    )
    run = context.ledger.run
    seen, world = len(run.ranks_seen), run.world_size
    if seen > 1:
        fact += f" (all ranks: {percent(share)} of their steps)"
    if share < LEAST_SHARE:
        return f"{_neither(context, total)}: {fact}."
    frame = context.in_steps
    frame = keep(frame, frame["exposed_ns"].notna() & (frame["exposed_ns"] > 0))
    split = keep(frame, frame["transfer_ns"].notna())
    exposed, known = float(frame["exposed_ns"].sum()), float(split["exposed_ns"].sum())
    if exposed == 0 or known < exposed / 2:
        why = _why_unknown(context, frame, seen, world)
        return f"Network or a late rank cannot be told: {fact}; {why}."
    moving = float(np.minimum(split["exposed_ns"], split["transfer_ns"]).sum())
    waiting = known - moving
    unknown = "" if known == exposed else f", and {percent(1 - known / exposed)} cannot be told"
    rate, factor = _rate(split)
    parts = (
        f"{percent(waiting / exposed)} of it is waiting for late ranks{{who}}, "
        f"{percent(moving / exposed)} is moving data{rate}{unknown}"
    )
    who, verdict = "", ""
    rows = waits(context)
    bubbles = float(message_waits(context)["lost_ns"].sum())
    culprits = named(rows) if not rows.empty and bubbles <= waiting / 2 else []
    if bubbles > waiting / 2:
        who = f" or other stages ({percent(bubbles / exposed)} between pipeline stages)"
    elif culprits:
        once = late_to(rows)
        last = int(((once["late_rank"] == culprits[0]) & (once["late_ns"] >= LEAST_LATE_NS)).sum())
        who = f" (rank {culprits[0]} is last in {last} of {times(len(once), 'collective')})"
    elif waiting:
        who = " (no single rank)"
    if waiting > moving and bubbles > waiting / 2:
        verdict = "Pipeline stages wait for each other, not for the network"
    elif waiting > moving:
        verdict = f"Rank {culprits[0]} is late" if culprits else "Late ranks, no single one, are at fault"
        verdict += ", not the network"
    elif factor is None:
        verdict = "Moving data, not late ranks, is what costs"
    elif factor >= SLOW_FACTOR:
        verdict = "The network is at fault, not a late rank"
    else:
        verdict = "Neither: the network does what it can, and what it has to move is not hidden"
    return f"{verdict}: {fact}; {parts.format(who=who)}."


def _neither(context: Context, total: float) -> str:
    """Return the verdict where communication costs little: what costs instead."""
    steps = context.step_rows
    if context.collectives.empty:
        head = "No communication on record"
    else:
        head = "Neither network nor a late rank is at fault, communication is hidden or small"
    idle = float(steps["idle_ns"].sum())
    if idle / total < IDLE_SHARE:
        return head
    lost = context.stalls_in_steps.groupby("kind")["lost_ns"].sum()
    reasons = {"data": "data loading", "host-sync": "waits for the device", "bubble": "pipeline bubbles"}
    told = {words: float(lost.get(kind, 0)) for kind, words in reasons.items()}
    most = max(told, key=lambda words: told[words])
    by = f", most of it by {most}" if told[most] > idle / 2 else ", bound by the host" if len(lost) else ""
    return f"{head}; {percent(idle / total)} of the steps is idle{by}"


def _why_unknown(context: Context, frame: pd.DataFrame, seen: int, world: int) -> str:
    peers = float(frame.loc[frame["op"].isin(PEER_OPS), "exposed_ns"].sum())
    if peers > float(frame["exposed_ns"].sum()) / 2:
        return "most of it is in sends and receives whose other ends could not be matched"
    if seen < world:
        return f"{seen} of {world} ranks seen: waiting cannot be told from moving data"
    if context.collectives["skew_ns"].notna().any():
        return "the hosts' clocks disagree: waiting cannot be told from moving data"
    return "the ranks' collectives could not be matched: waiting cannot be told from moving data"


def _rate(split: pd.DataFrame) -> tuple[str, float | None]:
    """Return ` at a median busbw of 11 GB/s, 1.3 times its floor` as far as known, and the factor."""
    words = ""
    rates = split["busbw_gbps"].dropna()
    if len(rates):
        words = f" at a median busbw of {float(rates.median()):.3g} GB/s"
    judged = keep(split, (split["floor_ns"] > 0) & (split["transfer_ns"] > 0) & split["match_id"].notna())
    if judged.empty:
        return f"{words}, floor unknown" if words else " at an unknown rate", None
    fastest = judged.groupby("match_id").agg(t=("transfer_ns", "min"), floor=("floor_ns", "first"))
    factor = float(fastest["t"].sum()) / float(fastest["floor"].sum())
    return f"{words}, {factor:.2g} times its floor", factor
