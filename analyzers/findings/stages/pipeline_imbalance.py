"""Stages of a pipeline of which one computes more than the others."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.origins.like_with_like import alike_ranks
from shardtoll.analyzers.findings.origins.origin import origins
from shardtoll.analyzers.pipelines.pipeline_shape import shape
from shardtoll.analyzers.pipelines.stage_lines import lines
from shardtoll.analyzers.pipelines.stage_messages import place
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep, steps_spoken_of
from shardtoll.ledger import Evidence, Finding, Remedy, Where
from shardtoll.ledger.words.human import duration, percent, ranks

LEAST_SHARE: Final = 0.02
"""Share of the step that the slowest stage must compute beyond the mean: less is noise."""

LEAST_EXCESS: Final = 0.05
"""And the part of the mean."""

LEAST_BUSY_SHARE: Final = 0.05
LEAST_BUSY_EXCESS: Final = 0.2
"""The same if time outside operators counts too, in which a busy machine shows."""

WARNING_SHARE: Final = 0.05

_ING: Final = {"compute": "computing", "work": "working"}


class Imbalance(Struct, frozen=True):
    """The pipeline whose slowest stage computes most beyond its mean. Times per step, in ns."""

    slowest: tuple[int, ...]
    """Rank of the slowest stage, and of other pipelines those whose excess is at least half of its."""
    stage: int | None
    """Its place in the pipeline, from 0; None if the order of stages is not on record."""
    stages: int
    slowest_ns: float
    mean_ns: float
    per_rank: int = 1
    """Stages of a rank. If there are several, `stage` is the rank's place among the pipeline's ranks."""
    verb: str = "compute"
    """The verb for what it does longer: `compute`, or `work` if time outside operators counts too."""

    @property
    def excess_ns(self) -> float:
        """Compute time of the slowest stage beyond the mean of the stages."""
        return self.slowest_ns - self.mean_ns


def pipes(context: Context) -> tuple[list[tuple[int, ...]], bool]:
    """Return the ranks of each pipeline, in order of stages, and whether that order is on record.

    By the mesh, else by groups whose messages flow as a pipeline's. Else the ranks that were idle in a
    pipeline's schedule are taken as one.
    """
    in_order = lines(context)
    if in_order:
        return in_order, True
    stalls = context.stalls_in_steps
    idle = keep(stalls, stalls["kind"] == "bubble")
    all_idle = tuple(sorted({int(rank) for rank in idle["rank"]}))
    return ([all_idle] if len(all_idle) > 1 else []), False


@once
def worst(context: Context) -> Imbalance | None:
    """Return the greatest imbalance; None without a pipeline all of whose ranks were seen, or if small.

    By compute. On CPUs a stage waits in a receive, so all its work between messages, in its quickest step,
    counts as well. Python, sleeping and files make a stage slow as well as operators.
    """
    # Surveying slows the stage with the most operators, not the one with the most work.
    rows = context.parts_rows
    if rows.empty or not context.step_ns:
        return None
    by_compute = _of_stages(context, rows.groupby("rank")["compute_ns"].mean().astype("float64"))
    by_computing = _worst(context, by_compute, LEAST_SHARE, LEAST_EXCESS, "compute")
    if context.ledger.run.source != "live" or not context.on_cpu:
        return by_computing
    work = (rows["compute_ns"] + rows["idle_ns"]).groupby(rows["rank"]).min().astype("float64")
    slow = _worst(context, _of_stages(context, work), LEAST_BUSY_SHARE, LEAST_BUSY_EXCESS, "work")
    both = [imbalance for imbalance in (by_computing, slow) if imbalance is not None]
    return max(both, key=lambda imbalance: imbalance.excess_ns, default=None)


def _of_stages(context: Context, spent: pd.Series[float]) -> pd.Series[float]:
    """Return the times with those of origins of lateness as their stage has them in the other replicas.

    Excess of one replica's rank over the same stage elsewhere has nothing to do with how layers are placed.
    Nor has excess in some steps only.
    """
    alike = alike_ranks(context)
    spent, own = spent.copy(), context.parts_rows
    for origin in origins(context):
        peers = spent.reindex(list(alike.peers.get(origin.rank, ()))).dropna()
        if origin.to_itself:
            peers = own.loc[own["rank"] == origin.rank, "compute_ns"].astype("float64")
        if len(peers) and origin.rank in spent.index:
            usual = float(peers.quantile(0.5, interpolation="lower"))
            spent[origin.rank] = min(float(spent[origin.rank]), usual)
    return spent


def _worst(
    context: Context, spent: pd.Series[float], least_share: float, least_excess: float, verb: str
) -> Imbalance | None:
    excesses: list[tuple[float, tuple[int, ...], np.ndarray[tuple[int], np.dtype[np.float64]]]] = []
    stages, ordered = pipes(context)
    for line in stages:
        if set(line) <= set(spent.index):
            times = spent.loc[list(line)].to_numpy(dtype=np.float64)
            excesses.append((float(times.max() - times.mean()), line, times))
    if not excesses or context.step_ns is None:
        return None
    excess, line, times = max(excesses, key=lambda entry: entry[0])
    if excess < least_share * context.step_ns or excess < least_excess * times.mean():
        return None
    stage = int(np.argmax(times))
    slow = {other[int(np.argmax(each))] for more, other, each in excesses if more >= excess / 2}
    form = shape(context)
    return Imbalance(
        slowest=tuple(sorted(slow)),
        stage=stage if ordered else None,
        stages=len(line),
        slowest_ns=float(times[stage]),
        mean_ns=float(times.mean()),
        per_rank=1 if form is None else form.stages_per_rank or 1,
        verb=verb,
    )


def clause(imbalance: Imbalance) -> str:
    """Return `rank 3 (stage 3 of 0-7) computes 44.7 ms per step, 10.5 ms more than the mean stage`."""
    stage = "" if imbalance.stage is None else f" (stage {imbalance.stage} of 0-{imbalance.stages - 1})"
    if imbalance.stage == imbalance.stages - 1:
        stage = f" (stage {imbalance.stage}, the last)"
    if stage and imbalance.per_rank > 1:
        stage = f" ({imbalance.per_rank} of the {imbalance.per_rank * imbalance.stages} stages)"
    # Python, sleep and files of a stage on CPUs are no operators: bars show them as idle.
    verb, outside = ("compute", "") if imbalance.verb == "compute" else ("spend", " outside messages")
    if len(imbalance.slowest) == 1:
        verb += "s"
    return (
        f"{ranks(imbalance.slowest)}{stage} {verb} {duration(imbalance.slowest_ns)} per step{outside}, "
        f"{duration(imbalance.excess_ns)} more than the mean stage"
    )


def find(context: Context) -> list[Finding]:
    """Return at most one finding.

    Toll: what the slowest stage computes beyond the mean of the stages, per step. With many micro-batches
    a step takes as long as its slowest stage, so that balance saves no more than this.
    """
    imbalance = worst(context)
    if imbalance is None:
        return []
    toll = round(imbalance.excess_ns)
    share = context.share_as_watched(toll) or 0.0
    waiting = "the others wait" if imbalance.stages > 2 else "the other stage waits"
    return [
        Finding(
            kind="pipeline-imbalance",
            severity="warning" if share >= WARNING_SHARE else "info",
            title=f"{clause(imbalance)} ({percent(share)} of the step), and {waiting} for it",
            toll_ns=toll,
            floor_ns=None,
            saving_ns=toll,
            bytes=None,
            count=1,
            ranks=imbalance.slowest,
            rows=steps_spoken_of(context.step_rows, imbalance.slowest, context.surveyed),
            where=place(context, imbalance.slowest[0]) if imbalance.stage is not None else Where(),
            evidence=(
                Evidence(f"the slowest stage {imbalance.verb}s, per step", round(imbalance.slowest_ns), "ns"),
                Evidence("mean of the stages", round(imbalance.mean_ns), "ns"),
                Evidence("stages", imbalance.stages),
                Evidence("waiting for it", "not billed again as pipeline-bubble"),
            ),
            remedy=Remedy(
                "Move layers from the slowest stage to faster ones, counting embedding and head as layers. "
                "If its share of the model is no larger, its device is slower: compare clocks, temperature "
                "and power limits with another rank's.",
                code='pipeline(model, (micro_batch,), split_spec={"layers.3": SplitPoint.BEGINNING})',
                counterfactual=f"the same step with every stage {_ING[imbalance.verb]} as long as the mean",
            ),
            confidence="certain" if imbalance.stage is not None else "likely",
        )
    ]
