"""What a mean step of a rank divides into where the loss of scaling is asked for."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from shardtoll.analyzers.compare_steps import PARTS, StepSeries
from shardtoll.analyzers.peers import PEER_OPS
from shardtoll.ledger import Report
from shardtoll.ledger.levels import in_steps
from shardtoll.ledger.pipeline import PIPELINE_DIMS


def scaling_parts(report: Report, series: StepSeries, numbers: tuple[int, ...]) -> dict[str, float]:
    """Return ns by the names of `scaling.LOSSES`; they add up to the mean step.

    The bubble is what stalls say is idle inside a pipeline's schedule, and the waiting in messages between
    its stages. Duplicated work is the toll of such findings, never more than the computing. Waiting, bubble
    and duplicated work are taken out of what they are parts of.
    """
    mean = dict(zip(PARTS, (float(part.mean()) for part in series.parts), strict=True))
    idle_bubble = min(_bubble(report, numbers), max(mean["idle"], 0.0))
    message_waits = min(_message_waits(report, numbers), max(mean["waiting"], 0.0))
    twice = min(
        float(sum(one.toll_ns or 0 for one in report.findings if one.kind == "duplicated-compute")),
        max(mean["computing"], 0.0),
    )
    return {
        "exposed communication": mean["moving"],
        "waiting": mean["waiting"] - message_waits,
        "bubble": idle_bubble + message_waits,
        "duplicated work": twice,
        "compute slowdown": mean["computing"] - twice,
        "other": mean["copies"] + mean["idle"] - idle_bubble + mean["unattributed"],
    }


def _mean(values: pd.Series[float] | float, report: Report, numbers: tuple[int, ...]) -> float:
    return float(np.sum(values)) / max(1, len(numbers)) / max(1, len(report.run.ranks_seen))


def _bubble(report: Report, numbers: tuple[int, ...]) -> float:
    stalls = in_steps(report.tables["stalls"], numbers)
    lost = pc.sum(stalls.filter(pc.equal(stalls.column("kind"), "bubble")).column("lost_ns")).as_py()
    return _mean(float(lost or 0), report, numbers)


def _message_waits(report: Report, numbers: tuple[int, ...]) -> float:
    """Return the exposed time in sends and receives of a pipeline's dimension beyond their transfers."""
    table = in_steps(report.tables["collectives"], numbers)
    mask = pc.is_in(table.column("op"), value_set=_words(PEER_OPS))
    mask = pc.and_(
        mask, pc.fill_null(pc.is_in(table.column("mesh_dim"), value_set=_words(PIPELINE_DIMS)), False)
    )
    table = table.filter(pc.and_(mask, pc.is_valid(table.column("transfer_ns"))))
    late = pc.subtract(table.column("exposed_ns"), table.column("transfer_ns"))
    found = pc.sum(pc.max_element_wise(late, 0)).as_py()
    return _mean(float(found or 0), report, numbers)


def _words(values: tuple[str, ...]) -> object:
    import pyarrow as pa

    return pa.array(sorted(values), pa.string())
