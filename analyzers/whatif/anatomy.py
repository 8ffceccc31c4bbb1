"""What a simulated step consists of on each rank: compute, exposed communication and copies, the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.event_graph import Kind
from shardtoll.analyzers.replay.outcome import Outcome
from shardtoll.ledger.answers.what_if import Parts

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_COMPUTE = (Kind.COMPUTE, Kind.OPTIMIZER)


def parts_by_rank(
    recorded: Recorded, outcome: Outcome, anchor: float = 1.0, step_factor: float = 1.0
) -> dict[int, Parts]:
    """Return rank -> parts per step. An instant belongs to the first that is busy, in the order of the parts;
    what a rank waits in a collective is communication.

    `anchor`: times as long everything is, see `Replayer.anchor`. `step_factor`: times as long the step is
    beyond that, by what no node stands for, see `Draft.step_factor`: the rest grows and shrinks, no compute.
    """
    times: dict[int, list[float]] = {}
    for (_, rank), time in recorded.step_times(outcome).items():
        times.setdefault(rank, []).append(time)
    compute = _busy(recorded, outcome, recorded.of_kinds(_COMPUTE))
    comm = _busy(recorded, outcome, recorded.of_kinds((*_COMPUTE, Kind.COLLECTIVE))) - compute
    copy = _busy(recorded, outcome, recorded.of_kinds((*_COMPUTE, Kind.COLLECTIVE, Kind.COPY)))
    made = {}
    for place, rank in enumerate(recorded.ranks):
        of_rank = times.get(rank, [])
        step = (float(np.mean(of_rank)) if of_rank else 0.0) * anchor * step_factor
        count = max(1, len(of_rank))
        wanted = [compute[place], comm[place], copy[place] - compute[place] - comm[place]]
        parts: list[int] = []
        left = round(step)
        for part in wanted:
            parts.append(min(left, max(0, round(part / count * anchor))))
            left -= parts[-1]
        made[rank] = Parts(round(step), parts[0], parts[1], parts[2], left)
    return made


def of_step(of_rank: Parts, step_ns: float) -> Parts:
    """Return the parts of the slowest rank, its rest such that they add up to the step's time."""
    rest = round(step_ns) - of_rank.compute_ns - of_rank.exposed_comm_ns - of_rank.exposed_copy_ns
    if rest >= 0:
        return replace(of_rank, step_ns=round(step_ns), rest_ns=rest)
    return of_rank


def _busy(recorded: Recorded, outcome: Outcome, chosen: Bools) -> Floats:
    """Return for each rank how long any of its chosen nodes ran. Steps that begin anew count apart."""
    chosen = chosen & (recorded.step >= 0)
    busy = np.zeros(len(recorded.ranks))
    start, end = outcome.arrival_ns[chosen], outcome.end_ns[chosen]
    if not len(start):
        return busy
    apart = recorded.graph.rank[chosen]
    if recorded.source == "points":
        apart = apart * len(recorded.steps) + np.searchsorted(recorded.steps, recorded.step[chosen])
    span = float(outcome.end_ns.max()) + 1.0
    start, end = start + apart * span, end + apart * span
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.concatenate([[-np.inf], np.maximum.accumulate(end)[:-1]])
    lasts = np.maximum(0.0, end - np.maximum(start, reach))
    np.add.at(busy, recorded.graph.rank[chosen][order], lasts)
    return busy
