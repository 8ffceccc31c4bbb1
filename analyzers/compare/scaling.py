"""How well work spreads over more ranks, and where the rest goes.

Efficiency is work per rank and second of the run with more ranks over that of the one with fewer. E = (W2 /
(N2 T2)) / (W1 / (N1 T1)), for work W of a step, N ranks, T a step's time. With W2 = W1 this is strong scaling
(Amdahl, 1967), with W2/N2 = W1/N1 weak scaling (Gustafson, "Reevaluating Amdahl's law", 1988). Both are as in
Grama et al., "Introduction to parallel computing" (2003), 5.2.

The loss is divided as lost cycles are (Crovella and LeBlanc, "Parallel performance prediction using lost
cycles analysis", 1994). A unit of work costs c = N t / W of rank-time in each part t of the step. So
1 - E = sum over the parts of (c2 - c1) / (whole c2). The parts of a step add up to it, so the losses add up
to 1 - E.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.two_runs.steps import PARTS, StepSeries
from shardtoll.ledger import Report
from shardtoll.ledger.answers.comparison import Loss, Scaling, Side
from shardtoll.ledger.records.levels import in_steps
from shardtoll.ledger.records.mesh_names import is_of

LOSSES: Final = (
    "exposed communication",
    "waiting",
    "bubble",
    "duplicated work",
    "compute slowdown",
    "other",
)

Kind = Literal["strong", "weak", "given", "batch", "unknown"]


_OPTION: Final = "--scaling strong|weak, or --work-before and --work-after, says which"


def scaling(
    ranks: tuple[int, int],
    parts: tuple[Mapping[str, float], Mapping[str, float]],
    kind: Kind,
    work: tuple[float, float] | None,
    why: str = "",
) -> Scaling | None:
    """Return efficiency and losses of the run with more ranks against the other; None without times.

    `parts`: for each run ns of a mean step and rank by the names in `LOSSES` (compute without what is
    duplicated under `compute slowdown`). `work` of a step of each, needed if `kind` is `given` or `batch`.
    `why` the kind was chosen. For an unknown kind the figures are those of strong scaling.
    """
    smaller, larger = (0, 1) if ranks[0] <= ranks[1] else (1, 0)
    if kind in ("strong", "unknown"):
        done = (1.0, 1.0)
    elif kind == "weak":
        done = (float(ranks[0]), float(ranks[1]))
    else:
        assert work is not None, "the work is given"
        done = work
    whole = [sum(run.values()) for run in parts]
    if min(whole) <= 0:
        return None
    cost = [ranks[run] / done[run] for run in (0, 1)]
    total = cost[larger] * whole[larger]
    losses = tuple(
        Loss(
            name,
            (cost[larger] * parts[larger].get(name, 0.0) - cost[smaller] * parts[smaller].get(name, 0.0))
            / total,
        )
        for name in LOSSES
    )
    return Scaling(
        kind=kind,
        ranks=(ranks[smaller], ranks[larger]),
        smaller_is="before" if smaller == 0 else "after",
        speedup=(done[larger] / whole[larger]) / (done[smaller] / whole[smaller]),
        efficiency=cost[smaller] * whole[smaller] / total,
        losses=losses,
        why=why,
    )


def scaling_kind(
    sides: tuple[Side, Side], meshes: tuple[Iterable[str], Iterable[str]]
) -> tuple[Kind, tuple[float, float] | None, str]:
    """Return the kind, the work of a step of each run where the kind needs it, and why in words.

    Equal effective batches per step are strong scaling, equal ones per rank are weak. If they are neither,
    the batches are the work. `meshes`: names of the mesh dimensions of each run. If nothing shows which ranks
    have data of their own, all have it unless a dimension may be one along which ranks share it.
    """
    before, other = sides
    was, now = (side.batch.effective(side.world_size) for side in sides)
    if was is None or now is None:
        return "unknown", None, f"the effective batch is not known; {_OPTION}"
    if before.batch.rows_of != other.batch.rows_of:
        return "unknown", None, f"the batches were read from different places; {_OPTION}"
    assumed = any(side.batch.ranks is None for side in sides)
    if assumed and any(not is_of(name, "data") for names in meshes for name in names):
        return "unknown", None, f'which ranks share data is not known without checks=("data",); {_OPTION}'
    of = "every rank taken to have data of its own" if assumed else "by the data of the ranks"
    if was == now:
        return "strong", None, f"the effective batch is {was:,} in both, {of}"
    if was * other.world_size == now * before.world_size:
        each = was / before.world_size
        return "weak", None, f"the effective batch is {each:,g} per rank in both, {of}"
    why = f"effective batch {was:,} before, {now:,} after, {of}: equal neither in all nor a rank"
    return "batch", (float(was), float(now)), why


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
        float(
            sum(finding.toll_ns or 0 for finding in report.findings if finding.kind == "duplicated-compute")
        ),
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


def _bubble(report: Report, numbers: tuple[int, ...]) -> float:
    stalls = in_steps(report.tables["stalls"], numbers)
    lost = pc.sum(stalls.filter(pc.equal(stalls.column("kind"), "bubble")).column("lost_ns")).as_py()
    return _per_step_and_rank(lost, report, numbers)


def _message_waits(report: Report, numbers: tuple[int, ...]) -> float:
    """Return the exposed time in sends and receives of the pipelines' groups beyond their transfers."""
    if report.pipelines is None:
        return 0.0
    table = in_steps(report.tables["collectives"], numbers)
    table = table.filter(pc.is_in(table.column("op"), value_set=pa.array(sorted(PEER_OPS), pa.string())))
    ids = pa.array(report.pipelines.group_ids, table.column("group_id").type)
    table = table.filter(pc.is_in(table.column("group_id"), value_set=ids))
    table = table.filter(pc.is_valid(table.column("transfer_ns")))
    late = pc.subtract(table.column("exposed_ns"), table.column("transfer_ns"))
    return _per_step_and_rank(pc.sum(pc.max_element_wise(late, 0)).as_py(), report, numbers)


def _per_step_and_rank(sum_ns: int | None, report: Report, numbers: tuple[int, ...]) -> float:
    return float(sum_ns or 0) / max(1, len(numbers)) / max(1, len(report.run.ranks_seen))
