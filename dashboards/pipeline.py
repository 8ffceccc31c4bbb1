"""What pipelines there are, what their messages waited, and which share of a step each stage lost so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shardtoll.dashboards.members import KEYS, members
from shardtoll.ledger import Report
from shardtoll.ledger.levels import alike_steps, surveyed_steps
from shardtoll.ledger.pipeline import PIPELINE_DIMS, one_way
from shardtoll.ledger.tables import to_frame

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS: Final = (
    *("step", "rank", "group", "group_size", "mesh_dim", "op", "root", "phase", "start_ns", "duration_ns"),
    *(
        "exposed_ns",
        "wait_ns",
        "transfer_ns",
        "message_bytes",
        "module",
        "parameter",
        "source",
        "caused_by_op",
    ),
)


@dataclass(frozen=True, slots=True)
class Pipelines:
    """The pipelines of a job."""

    lines: tuple[tuple[int, ...], ...]
    """The ranks of each, in order of stages."""
    messages: pd.DataFrame
    """Its sends and receives in finished steps, with `lost_ns` (exposed waiting for the other end; NA where
    unknown) and `index`, the place among the rank's rows of the collectives' table."""
    steps: tuple[int, ...]
    """The steps that the lost time is a mean over."""
    lost: pd.DataFrame
    """Ranks by reasons (`waiting in recv`, ...): ns of all those steps together."""
    batches: int | None
    """Micro-batches of a step, as sends tell; None where they do not."""
    step_ns: float | None
    """Mean of those steps on the slowest rank, capture's own work left out."""

    def lost_ns(self, rank: int) -> float | None:
        """Return what a rank loses a step; None where nothing is on record of it."""
        if not self.steps or rank not in self.lost.index:
            return None
        return sum(self.by_reason(rank).values())

    def by_reason(self, rank: int) -> dict[str, float]:
        """Return the same by reason, of a rank of which there is something on record."""
        own = self.lost.loc[rank].to_numpy(dtype=np.float64)
        return {str(name): float(ns) / len(self.steps) for name, ns in zip(self.lost, own, strict=True)}


def pipelines(report: Report) -> Pipelines | None:
    """Return the pipelines; None where there is none.

    A group is one as the analyses have it: by the name of its mesh dimension or, without one, where messages
    flow one way in forward and the other way in backward. Lost is what they bill as `pipeline-bubble`: what
    is exposed of a message beyond its transfer, and time idle inside a schedule.
    """
    frame = to_frame(report.tables["collectives"].select(list(_COLUMNS)))
    frame["index"] = frame.groupby("rank").cumcount()
    frame = frame[frame["op"].isin(("send", "recv")) & frame["root"].notna()]
    if frame.empty:
        return None
    known = members(report, frame)
    number = frame.groupby(list(KEYS), sort=False).ngroup().to_numpy(dtype=np.int64)
    groups = list(known.values())
    ids = {group: at for at, group in enumerate(dict.fromkeys(groups)) if group is not None}
    frame["group_id"] = np.array([-1 if group is None else ids[group] for group in groups])[number]
    steps = report.tables["steps"]
    finished = set(steps.column("step").to_pylist())
    frame = frame[(frame["group_id"] >= 0) & frame["step"].isin(finished)]
    lost = frame["exposed_ns"] - frame["transfer_ns"]
    frame["lost_ns"] = lost.clip(lower=0).where(frame["wait_ns"].notna())
    told = frame[frame["lost_ns"].notna() & frame["step"].isin(alike_steps(steps))]
    named = frame["mesh_dim"].isin(PIPELINE_DIMS).to_numpy(dtype=bool, na_value=False)
    flowing = set(told.loc[one_way(told) & told["mesh_dim"].isna().to_numpy(dtype=bool), "group_id"])
    unnamed = frame["mesh_dim"].isna().to_numpy(dtype=bool)
    frame = frame[named | (unnamed & frame["group_id"].isin(flowing).to_numpy(dtype=bool))]
    if frame.empty:
        return None
    lines = {group.ranks for group in report.groups if group.mesh_dim in PIPELINE_DIMS and group.size > 1}
    if not lines:
        numbers = set(frame["group_id"])
        lines = {group for group, at in ids.items() if at in numbers}
    rows, over = _lost(report, frame)
    wide = rows.groupby(["rank", "name"])["lost_ns"].sum().unstack("name", fill_value=0)
    for rank in frame["rank"].unique():
        if rank not in wide.index:
            wide.loc[rank] = 0
    return Pipelines(
        lines=tuple(sorted(lines)),
        messages=frame,
        steps=over,
        lost=wide.sort_index(),
        batches=_batches(frame, lines, len(finished)),
        step_ns=_lasted(report, over),
    )


def _batches(frame: pd.DataFrame, lines: set[tuple[int, ...]], steps: int) -> int | None:
    """Return how often an end of the pipelines sends in a step: once a micro-batch."""
    ends = {rank for line in lines for rank in (line[0], line[-1])}
    sends = frame[(frame["op"] == "send") & frame["rank"].isin(ends)].groupby("rank").size()
    return round(float(sends.median()) / steps) or None if len(sends) else None


def _lost(report: Report, frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[int, ...]]:
    """Return the rows of lost time (rank, step, name, lost_ns) and the steps they are told of."""
    import pandas as pd

    steps = report.tables["steps"]
    alike = alike_steps(steps)
    waits = frame[frame["step"].isin(alike) & frame["lost_ns"].notna()]
    waits = waits[["rank", "step", "lost_ns"]].assign(name="waiting in " + waits["op"])
    told = _told_steps(report)
    stalls = report.stalls
    idle = stalls[(stalls["kind"] == "bubble") & stalls["step"].isin(told)]
    if idle.empty:
        return waits, alike
    idle = idle[["rank", "step", "lost_ns"]].assign(name="idle in the schedule")
    # Only where both are told do they add up to what a step loses.
    return pd.concat([idle, waits[waits["step"].isin(told)]], ignore_index=True), told


def _told_steps(report: Report) -> tuple[int, ...]:
    """Return the steps whose lost time is told by reason: of an audit those it traced, else the surveyed."""
    steps = report.tables["steps"]
    every = sorted(set(steps.column("step").to_pylist()))
    live = report.run.source == "live"
    traced = set(report.tables["leadups"].column("step").to_pylist()) if live else set()
    return tuple(step for step in every if step in traced) or surveyed_steps(steps) or tuple(every)


def _lasted(report: Report, over: tuple[int, ...]) -> float | None:
    frame = report.steps
    frame = frame[frame["step"].isin(over)]
    own_work = (frame["duration_ns"] - frame["capture_ns"]).groupby(frame["rank"]).mean()
    return float(own_work.max()) if len(own_work) else None
