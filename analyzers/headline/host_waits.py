"""The part of the headline that speaks of what the host does in place of training, if that costs most.

Its time is often outside every step: a batch is waited for before the step. An operator that reads a value
counts as compute on CPUs. The findings have its cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.trust.unbilled_time import in_every_step_ns
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Finding
from shardtoll.ledger.words.human import duration, ranks

HEADS: Final = {
    "data-stall": "Waiting for batches costs most",
    "host-sync": "Reading values on the host costs most",
    "checkpoint-stall": "Writing checkpoints costs most",
}
"""Kind of the finding -> what costs most."""
STALLS: Final = {"data-stall": "data", "host-sync": "host-sync", "checkpoint-stall": "checkpoint"}
"""Kind of the finding -> kind of the stalls that it is made of."""
LEAST_SHARE: Final = 0.2
"""Part of the longest step that it must cost."""
BETWEEN: Final = 0.9
"""Part of a toll that passes between steps from which all of it is said to."""


def clause(
    context: Context, findings: Sequence[Finding], *, within_idle: bool = False
) -> tuple[str, tuple[str, ...]] | None:
    """Return what costs most with its figures, and the kind of its finding; None if something else does.

    It costs more than exposed communication and idle time of a rank that stalls: then it leads, whatever
    these are. Other ranks may wait for those that stall, so that their waiting does not count. A rank that
    alone is late for it, and is warned of, is a matter of the late rank. `within_idle`: idle time that it
    accounts for does not count against it, as that of a device whose host reads values.
    """
    late = {
        finding.ranks
        for finding in findings
        if finding.kind == "straggler" and len(finding.ranks) == 1 and finding.severity == "warning"
    }
    warned = [
        finding
        for finding in findings
        if finding.kind in HEADS
        and finding.severity == "warning"
        and finding.ranks not in late
        # On an accelerator the device may still compute while its host waits.
        and finding.confidence != "possible"
    ]
    most = max(warned, key=lambda finding: finding.toll_ns or 0, default=None)
    if most is None or not most.toll_ns:
        return None
    if any((finding.toll_ns or 0) > most.toll_ns for finding in findings):
        # The bill says otherwise.
        return None
    told, parted = (_of(rows, most.ranks) for rows in (context.told_rows, context.parts_rows))
    exposed, step = (_longest(told, name) for name in ("exposed_comm_ns", "duration_ns"))
    idle = _longest(parted, "idle_ns")
    if within_idle:
        own_ns = max((in_every_step_ns(most, rank) for rank in most.ranks), default=0.0)
        idle -= max(_lost_ns(context, most.kind), own_ns)
    if not most.toll_ns > max(exposed, idle, LEAST_SHARE * step):
        return None
    before = most.figure("before_step_ns") or 0
    between = before >= BETWEEN * most.toll_ns
    cost = f"{duration(before)} before each step" if between else f"{duration(most.toll_ns)} per step"
    who = "" if set(most.ranks) == set(context.ledger.run.ranks_seen) else f" on {ranks(most.ranks)}"
    return f"{HEADS[most.kind]}: {cost}{who}", (most.kind,)


def _of(rows: pd.DataFrame, ranks: Sequence[int]) -> pd.DataFrame:
    """Return the rows of these ranks; all if none of them has any."""
    own = keep(rows, rows["rank"].isin(ranks))
    return rows if own.empty else own


def _lost_ns(context: Context, kind: str) -> float:
    """Return how long a surveyed step is idle for it, on the rank where that is longest."""
    stalls, steps = context.stalls_in_steps, context.surveyed
    rows = keep(stalls, stalls["step"].isin(steps) & (stalls["kind"] == STALLS[kind]))
    by_rank = rows.groupby("rank")["lost_ns"].sum()
    return float(by_rank.max()) / len(steps) if len(by_rank) else 0.0


def _longest(rows: pd.DataFrame, name: str) -> float:
    """Return the longest mean of a rank; 0 if it is unknown, as what is known leads then."""
    means = rows[name].astype("float64").groupby(rows["rank"]).mean()
    return float(means.fillna(0.0).max()) if len(means) else 0.0
