"""Stages of a pipeline of which one computes more than the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.pipeline_bubble import lines, place
from shardtoll.analyzers.tally import keep
from shardtoll.analyzers.words import duration, percent, ranks
from shardtoll.ledger import Evidence, Finding, Remedy, Where

LEAST_SHARE: Final = 0.02
"""Share of the step that the slowest stage must compute beyond the mean: less is noise."""

LEAST_EXCESS: Final = 0.05
"""And the part of the mean."""

LEAST_BUSY_SHARE: Final = 0.05
LEAST_BUSY_EXCESS: Final = 0.2
"""The same where time outside operators counts too, in which a busy machine shows."""

WARNING_SHARE: Final = 0.05

_ING: Final = {"compute": "computing", "work": "working"}


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The pipeline whose slowest stage computes most beyond its mean. Times per step, in ns."""

    slowest: tuple[int, ...]
    """Rank of the slowest stage, and of other pipelines those whose excess is at least half of its."""
    stage: int | None
    """Its place in the pipeline, from 0; None where the order of stages is not on record."""
    stages: int
    slowest_ns: float
    mean_ns: float
    verb: str = "compute"
    """What it does longer: `compute`, or `work` where time outside operators counts too."""

    @property
    def excess_ns(self) -> float:
        """What the slowest stage computes beyond the mean of the stages."""
        return self.slowest_ns - self.mean_ns


def pipes(context: Context) -> tuple[list[tuple[int, ...]], bool]:
    """Return the ranks of each pipeline, in order of stages, and whether that order is on record.

    By the mesh, else by groups whose messages flow as a pipeline's; else the ranks that were idle in a
    pipeline's schedule are taken as one.
    """
    found = lines(context)
    if found:
        return found, True
    stalls = context.stalls_in_steps
    idle = keep(stalls, stalls["kind"] == "bubble")
    one = tuple(sorted({int(rank) for rank in idle["rank"]}))
    return ([one] if len(one) > 1 else []), False


def worst(context: Context) -> Imbalance | None:
    """Return the greatest imbalance; None without a pipeline all of whose ranks were seen, or if small.

    By compute; on CPUs, where a stage that waits does so in a receive, also by all that it does between its
    messages, in its quickest step: Python, sleeping and files make a stage slow as well as operators.
    """
    rows = context.surveyed_rows
    if rows.empty or not context.step_ns:
        return None
    by_compute = rows.groupby("rank")["compute_ns"].mean().astype("float64")
    found = _worst(context, by_compute, LEAST_SHARE, LEAST_EXCESS, "compute")
    if context.ledger.run.source != "live" or not context.on_cpu:
        return found
    work = (rows["compute_ns"] + rows["idle_ns"]).groupby(rows["rank"]).min().astype("float64")
    slow = _worst(context, work, LEAST_BUSY_SHARE, LEAST_BUSY_EXCESS, "work")
    both = [one for one in (found, slow) if one is not None]
    return max(both, key=lambda one: one.excess_ns, default=None)


def _worst(
    context: Context, spent: pd.Series[float], least_share: float, least_excess: float, verb: str
) -> Imbalance | None:
    found: list[tuple[float, tuple[int, ...], np.ndarray[tuple[int], np.dtype[np.float64]]]] = []
    stages, ordered = pipes(context)
    for line in stages:
        if set(line) <= set(spent.index):
            times = spent.loc[list(line)].to_numpy(dtype=np.float64)
            found.append((float(times.max() - times.mean()), line, times))
    if not found or context.step_ns is None:
        return None
    excess, line, times = max(found, key=lambda one: one[0])
    if excess < least_share * context.step_ns or excess < least_excess * times.mean():
        return None
    stage = int(np.argmax(times))
    slow = {other[int(np.argmax(each))] for more, other, each in found if more >= excess / 2}
    return Imbalance(
        slowest=tuple(sorted(slow)),
        stage=stage if ordered else None,
        stages=len(line),
        slowest_ns=float(times[stage]),
        mean_ns=float(times.mean()),
        verb=verb,
    )


def clause(found: Imbalance) -> str:
    """Return `rank 3 (stage 3 of 0-7) computes 44.7 ms a step, 10.5 ms beyond the mean stage`."""
    stage = "" if found.stage is None else f" (stage {found.stage} of 0-{found.stages - 1})"
    verb = f"{found.verb}s" if len(found.slowest) == 1 else found.verb
    return (
        f"{ranks(found.slowest)}{stage} {verb} {duration(found.slowest_ns)} a step, "
        f"{duration(found.excess_ns)} beyond the mean stage"
    )


def find(context: Context) -> list[Finding]:
    """Return at most one finding.

    Toll: what the slowest stage computes beyond the mean of the stages, per step. With many micro-batches
    a step takes as long as its slowest stage, so that balance saves no more than this.
    """
    found = worst(context)
    if found is None:
        return []
    toll = round(found.excess_ns)
    share = context.share(toll, context.surveyed) or 0.0
    return [
        Finding(
            kind="pipeline-imbalance",
            severity="warning" if share >= WARNING_SHARE else "info",
            title=f"{clause(found)} ({percent(share)} of the step), and the others wait for it",
            toll_ns=toll,
            floor_ns=None,
            saving_ns=toll,
            bytes=None,
            count=1,
            ranks=found.slowest,
            where=place(context, found.slowest[0]) if found.stage is not None else Where(),
            evidence=(
                Evidence(f"the slowest stage {found.verb}s, a step", round(found.slowest_ns), "ns"),
                Evidence("mean of the stages", round(found.mean_ns), "ns"),
                Evidence("stages", found.stages),
                Evidence("the others' waiting", "billed as pipeline-bubble"),
            ),
            remedy=Remedy(
                "Move layers from the slowest stage to the others, counting embedding and head as layers. If "
                "its share of the model is no larger, its device is slower: compare clocks, temperature and "
                "power limits with another rank's.",
                code='pipeline(model, (micro_batch,), split_spec={"layers.3": SplitPoint.BEGINNING})',
                counterfactual=f"the same step with every stage {_ING[found.verb]} as long as the mean",
            ),
            confidence="certain" if found.stage is not None else "likely",
        )
    ]
