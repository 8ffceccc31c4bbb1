"""How much of the slowest rank's step no finding has a price for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
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

_PARTS: Final = ("duration_ns", "idle_ns", "unattributed_ns", "capture_ns")


def unbilled_time(context: Context, findings: Sequence[Finding]) -> Unbilled | None:
    """Return the largest part of the slowest rank's mean step that is on no bill, if it is a large share.

    Idle time that a finding prices (a data stall, a wait for the device, a bubble) is billed. Of a rank whose
    steps nothing divides nothing is said: most of a watched step is then unattributed by design.
    """
    surveyed, parted = _by_rank(context.surveyed_rows), _by_rank(context.parts_rows)
    # Of watched steps those count that tell their waits, where there are any.
    rows = {**_by_rank(context.timed_rows), **_by_rank(context.told_rows), **parted}
    rank = max(sorted(rows), key=lambda each: float(rows[each]["duration_ns"].mean()), default=None)
    if rank is None or rank not in parted or rank not in surveyed:
        return None
    mean = {name: float(parted[rank][name].mean()) for name in _PARTS}
    stalls = keep(context.stalls, context.stalls["step"].isin(context.surveyed))
    kinds = {
        IDLE_BILLS[finding.kind]
        for finding in findings
        if finding.kind in IDLE_BILLS and rank in finding.ranks
    }
    billed = keep(stalls, (stalls["rank"] == rank) & stalls["kind"].isin(kinds))
    idle_ns = mean["idle_ns"] - int(billed["lost_ns"].sum()) / len(surveyed[rank])
    unattributed_ns = mean["unattributed_ns"] - mean["capture_ns"]
    time_ns, step_ns = max(idle_ns, unattributed_ns), mean["duration_ns"]
    if step_ns <= 0 or time_ns < LEAST_SHARE * step_ns:
        return None
    return Unbilled(rank, time_ns, step_ns, idle=idle_ns >= unattributed_ns)


def _by_rank(step_rows: pd.DataFrame) -> dict[int, pd.DataFrame]:
    return {int(str(rank)): rows for rank, rows in step_rows.groupby("rank")}
