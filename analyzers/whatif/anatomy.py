"""Parts of a simulated step on each rank: compute, exposed communication and copies, the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.event_graph import Kind
from shardtoll.analyzers.replay.events.outcome import Outcome
from shardtoll.ledger.answers.what_if import Parts

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_COMPUTE = (Kind.COMPUTE, Kind.OPTIMIZER)


def parts_by_rank(
    recorded: Recorded, outcome: Outcome, anchor: float = 1.0, step_factor: float = 1.0
) -> dict[int, Parts]:
    """Return rank -> parts per step. An instant belongs to the first busy part, in the order of the parts. A
    rank's waiting in a collective is communication.

    `anchor`: times as long everything is, see `Replayer.anchor`. `step_factor`: how many times longer the
    step is beyond that, without a node for it, see `Draft.step_factor`. The rest grows and shrinks, compute
    does not.
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
        made[rank] = _filled(round(step), [round(part / count * anchor) for part in wanted])
    return made


def parts_on_record(context: Context) -> dict[int, Parts]:
    """Return rank -> parts per step as the report has them: means of the steps whose parts it shows.

    If the steps whose times are truest have no parts, these are scaled to them, so that they add up to the
    report's step. A rank without parts on record is missing.
    """
    timed = _means(context.timed_rows)
    made = {}
    for rank, (own, *parts) in _means(context.parts_rows).items():
        step = timed[rank][0] if rank in timed else own
        if own > 0 and step > 0:
            made[rank] = _filled(round(step), [round(part * step / own) for part in parts])
    return made


_PARTS = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns")


def _means(rows: pd.DataFrame) -> dict[int, list[float]]:
    """Return rank -> mean of its own work and of its parts, in ns."""
    own = rows["duration_ns"].astype("float64") - rows["capture_ns"].astype("float64")
    columns = [own, *(rows[name].astype("float64").fillna(0.0) for name in _PARTS)]
    means = pd.concat(columns, axis=1).groupby(rows["rank"].to_numpy(dtype=np.int64)).mean()
    return {
        int(rank): [float(mean) for mean in of_rank]
        for rank, of_rank in zip(means.index, means.to_numpy(dtype=np.float64), strict=True)
    }


def _filled(step_ns: int, parts_ns: Sequence[int]) -> Parts:
    """Return the parts of a step, each as much shorter as all have to be to fit, and the rest."""
    made = [max(0, part) for part in parts_ns]
    total = sum(made)
    if total > step_ns:
        made = [part * step_ns // total for part in made]
    return Parts(step_ns, made[0], made[1], made[2], step_ns - sum(made))


def changed_as(on_record: Parts, replayed: Parts, after: Parts) -> Parts:
    """Return the parts on record with what the replayed ones change by.

    Replay divides a rank's own time under a collective by its own rule, as its record has no events there. A
    part that shrinks does so in proportion, and is gone if replay has none left. One that grows does so by as
    much.
    """
    step, *parts = (
        _changed(*(getattr(each, name) for each in (on_record, replayed, after)))
        for name in ("step_ns", *_PARTS)
    )
    return _filled(step, parts)


def _changed(on_record: int, replayed: int, after: int) -> int:
    if after >= replayed:
        return on_record + after - replayed
    return round(on_record * after / replayed)


def of_step(of_rank: Parts, step_ns: float) -> Parts:
    """Return the parts of the slowest rank, its rest such that they add up to the step's time."""
    return _filled(round(step_ns), [getattr(of_rank, name) for name in _PARTS])


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
