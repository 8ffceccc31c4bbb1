"""How much of a rank's step no finding has a price for, on the rank with most of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.divided import largest_error_ns
from shardtoll.analyzers.findings.stragglers.late_remedies import IDLE
from shardtoll.analyzers.shared import host_code
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Finding
from shardtoll.ledger.answers.unbilled import Unbilled

LEAST_SHARE: Final = 0.2
"""Share of a step that must not be passed over in silence because no finding has a price for it."""

IDLE_BILLS: Final = {
    "data-stall": "data",
    "host-sync": "host-sync",
    "launch-bound": "launch",
    "pipeline-bubble": "bubble",
    "checkpoint-stall": "checkpoint",
}
"""Finding kind -> kind of the stalls, parts of idle time, that it prices."""

IN_EVERY_STEP: Final = ("data-stall", "checkpoint-stall")
"""Kinds whose time is looked at in watched steps too, not in surveyed ones alone."""

LATE_PARTS: Final = {"data_ns": "data", "sync_ns": "host-sync", "host_ns": "launch"}
"""Part of a late rank's idle time that a straggler finding names -> kind of the stalls that it is."""

_PARTS: Final = ("duration_ns", "idle_ns", "unattributed_ns", "capture_ns")


def unbilled_time(context: Context, findings: Sequence[Finding]) -> Unbilled | None:
    """Return the largest part of a rank's mean step that is on no bill, if it is a large share.

    It is that of the rank with most of it, late ones left out unless they are slowest. Ranks that reduce
    together have steps of one length: the slowest says nothing of who stands idle. None if nothing divides
    the slowest rank's steps: most of a watched step is then unattributed by design.

    Idle time within the error of divided steps does not count: nobody knows whether there is any. Views have
    a line on all idle time that is returned.
    """
    parts = context.parts_rows
    parted = _duration_ns(parts)
    # If some watched steps show their waits, these count.
    lasted = {**_duration_ns(context.timed_rows), **_duration_ns(context.told_rows), **parted}
    slowest = max(sorted(lasted), key=lambda each: lasted[each], default=None)
    # Plain mappings: a look into a frame for each of a thousand ranks takes longer than all the rest.
    steps_of: dict[Any, int] = context.surveyed_rows["rank"].value_counts().to_dict()
    if slowest not in parted or slowest not in steps_of:
        return None
    stalls = keep(context.stalls_in_steps, context.stalls_in_steps["step"].isin(context.surveyed))
    lost: dict[Any, float] = stalls.groupby(["rank", "kind"])["lost_ns"].sum().to_dict()
    means: dict[Any, dict[int, float]] = parts.groupby("rank")[list(_PARTS)].mean().to_dict()
    # A late rank's idle time is its finding's matter, even if that has no figure for a part of it.
    late = {finding.ranks for finding in findings if finding.kind == "straggler"}
    ranks = [rank for rank in sorted(parted) if rank in steps_of and (rank == slowest or (rank,) not in late)]
    parts_ns, slowed_ranks, error_ns = {}, context.slowed_ranks, _error_ns(context)
    for rank in ranks:
        by_kind = {kind: lost.get((rank, kind), 0.0) / steps_of[rank] for kind in IDLE_BILLS.values()}
        # How much of that the survey made is unknown, which the verdict says.
        slowed = rank in slowed_ranks
        idle_ns = 0.0 if slowed else means["idle_ns"][rank] - _billed_ns(findings, rank, by_kind)
        idle_ns = 0.0 if idle_ns < error_ns else idle_ns
        parts_ns[rank] = idle_ns, means["unattributed_ns"][rank] - means["capture_ns"][rank]
    rank = max(ranks, key=lambda each: max(parts_ns[each]))
    idle_ns, unattributed_ns = parts_ns[rank]
    # The step as views show it: a watched one without its recording, a surveyed one with it.
    watched = bool((keep(parts, parts["rank"] == rank)["level"] == "watch").all())
    step_ns = means["duration_ns"][rank] - (means["capture_ns"][rank] if watched else 0.0)
    time_ns = max(idle_ns, unattributed_ns)
    if step_ns <= 0 or time_ns < LEAST_SHARE * step_ns:
        return None
    idle, surveyed = idle_ns >= unattributed_ns, steps_of[rank]
    did = host_code.most(keep(stalls, stalls["rank"] == rank), surveyed) if idle else None
    if did is None or did.mean_ns < host_code.TELLING * time_ns:
        return Unbilled(rank, time_ns, step_ns, idle=idle)
    name, doing_ns = did.name or None, min(did.mean_ns, time_ns)
    return Unbilled(rank, time_ns, step_ns, True, name, did.source, did.library, doing_ns)


def _error_ns(context: Context) -> float:
    """Return how far idle time may be off, on the rank with the largest error; 0 if a rank's was measured."""
    rows = context.step_rows
    divided = rows.loc[rows["parts_error_ns"].notna(), "rank"]
    return largest_error_ns(context.parts_rows) if set(divided) == set(rows["rank"]) else 0.0


def _billed_ns(findings: Sequence[Finding], rank: int, lost_ns: Mapping[str, float]) -> float:
    """Return how much of the rank's idle time in a mean step findings price; `lost_ns` is by kind of stall.

    A data stall, a wait for the device and a bubble are, and the time that a late rank is idle longer than
    others, by its straggler finding.
    """
    kinds = {
        IDLE_BILLS[finding.kind]
        for finding in findings
        if finding.kind in IDLE_BILLS and rank in finding.ranks
    }
    known = {kind: lost_ns[kind] for kind in kinds}
    for finding in findings:
        kind = IDLE_BILLS.get(finding.kind, "")
        known[kind] = max(known.get(kind, 0.0), in_every_step_ns(finding, rank))
    return sum(known.values()) + _late_ns(findings, rank, kinds)


def in_every_step_ns(finding: Finding, rank: int) -> float:
    """Return how much of each step that rank alone stands still for it; 0 if surveyed steps alone tell.

    Things that happen once in several steps may be in few surveyed ones, whose mean is then far off.
    """
    if finding.kind not in IN_EVERY_STEP or finding.ranks != (rank,):
        return 0.0
    return max(0.0, (finding.toll_ns or 0) - (finding.figure("before_step_ns") or 0))


def _late_ns(findings: Sequence[Finding], rank: int, billed: set[str]) -> float:
    """Return how much longer than others the rank is idle, as its straggler finding says, per step.

    Without what stalls of these kinds have on the bill already.
    """
    names = {IDLE[part] for part, kind in LATE_PARTS.items() if kind not in billed}
    return max(
        (
            sum(figure.value for figure in finding.figures if figure.name in names)
            for finding in findings
            if finding.kind == "straggler" and finding.ranks == (rank,)
        ),
        default=0.0,
    )


def _duration_ns(step_rows: pd.DataFrame) -> dict[int, float]:
    """Return rank -> how long its mean step took."""
    lasted, rank = (step_rows[name].to_numpy(dtype=np.int64) for name in ("duration_ns", "rank"))
    ranks, places = np.unique(rank, return_inverse=True)
    means = np.bincount(places, weights=lasted) / np.bincount(places)
    return dict(zip(ranks.tolist(), means.tolist(), strict=True))
