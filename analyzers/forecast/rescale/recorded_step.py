"""One recorded step of one rank as a graph: its compute between collectives, and collectives on their
streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.forecast.rescale.inside import Sent, inside
from shardtoll.analyzers.forecast.rescale.step_graph import step_graph
from shardtoll.analyzers.replay.events.engine import simulate
from shardtoll.analyzers.replay.events.event_graph import EventGraph
from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.records.levels import watched_steps


@dataclass(frozen=True, slots=True)
class Recorded:
    """A step and its parts."""

    step: int
    rank: int
    duration_ns: float
    """The mean step, which this one stands for."""
    compute_ns: float
    """Compute of the mean step."""
    scale: float
    """The mean step over this one: every time is scaled by it."""
    compute_share: float
    """Share of the time between collectives in which the device computes."""
    sent: tuple[Sent, ...]
    """Its collectives, cut to the step."""
    graph: EventGraph
    compute_nodes: npt.NDArray[np.int64]
    sent_nodes: npt.NDArray[np.int64]
    """Node of each collective."""

    def step_ns(self, compute_factor: float, sent_ns: Sequence[float], other_factor: float = 1.0) -> float:
        """Return the step with other times: `compute_factor` on computing, new durations of collectives."""
        durations = self.graph.duration_ns.copy()
        factor = self.compute_share * compute_factor + (1 - self.compute_share) * other_factor
        durations[self.compute_nodes] *= factor
        durations[self.sent_nodes] = sent_ns
        return float(simulate(self.graph, durations).end_ns[-1]) * self.scale


def recorded_step(report: Report) -> Recorded:
    """Return a step of the slowest rank that stands for all of them: the one nearest to their mean, scaled to
    it.

    The mean is the one that a report has: over watched steps, capture left out. If none was watched, it is
    over all steps but the first, which warms up. In a dry run it is the last step. UsageError if no step
    can be used.
    """
    steps = report.steps
    if steps.empty:
        raise UsageError("the run has no finished step", "record one whole step at least")
    timed = _timed(report)
    lasts = (timed["duration_ns"] - timed["capture_ns"]).where(
        timed["level"] == "watch", timed["duration_ns"]
    )
    means = lasts.groupby(timed["rank"]).mean()
    rank, mean = int(means.idxmax()), float(means.max())
    mine = _divided(timed, steps)
    mine = mine[mine["rank"] == rank] if (mine["rank"] == rank).any() else mine
    row = mine.iloc[int((mine["duration_ns"] - mean).abs().argmin())]
    calls = report.collectives
    calls = calls[(calls["step"] == row["step"]) & (calls["rank"] == row["rank"])]
    calls = calls[calls["start_ns"].notna() & calls["duration_ns"].notna()].sort_values("start_ns")
    whole = [_sent(call) for _, call in calls.iterrows()]
    start, duration = int(row["start_ns"]), int(row["duration_ns"])
    graph, compute_nodes, sent_nodes = step_graph(whole, start, duration)
    sent = inside(whole, start, start + duration)
    compute, exposed = int(row["compute_ns"]), int(row["exposed_comm_ns"])
    outside = sum(each.exposed_ns for each in whole) - sum(each.exposed_ns for each in sent)
    between = duration - max(0, exposed - outside)
    share = min(1.0, compute / between) if between > 0 else 0.0
    scale = mean / duration if duration else 1.0
    return Recorded(
        int(row["step"]), int(row["rank"]), mean, compute * scale, scale, share,
        sent, graph, compute_nodes, sent_nodes,
    )  # fmt: skip


def _timed(report: Report) -> pd.DataFrame:
    """Return the rows of the steps that tell how long a step takes."""
    steps = report.steps
    if report.run.source == "dry":
        last: pd.DataFrame = steps.loc[steps["step"] == steps["step"].max()]
        return last
    watched: pd.DataFrame = steps.loc[steps["step"].isin(watched_steps(report.tables["steps"]))]
    if not watched.empty:
        return watched
    later: pd.DataFrame = steps.loc[steps["step"] > steps["step"].min()]
    return later if later["step"].nunique() >= 2 else steps


def _divided(timed: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of which one can stand for the step: they tell compute from idle time."""
    told: pd.DataFrame = timed.loc[(timed["level"] != "watch") | timed["parts_error_ns"].notna()]
    if not told.empty:
        return told
    surveyed: pd.DataFrame = steps.loc[(steps["level"] != "watch") & (steps["step"] > steps["step"].min())]
    return timed if surveyed.empty else surveyed


def _sent(call: pd.Series[Any]) -> Sent:
    def number(name: str) -> int | None:
        value = call[name]
        return None if pd.isna(value) else int(value)

    return Sent(
        str(call["op"]),
        str(call["group"]),
        int(call["group_size"]),
        None if pd.isna(call["mesh_dim"]) else str(call["mesh_dim"]),
        number("message_bytes"),
        int(call["start_ns"]),
        int(call["duration_ns"]),
        number("exposed_ns") or 0,
        number("wait_ns") or 0,
    )
