"""Waiting for data: the device idle inside a step, or the loop still fetching between two steps.

A loop waits for its batch before the step that uses it, in time that no step contains. An audit records that
time with the step that follows. Its share is of step and wait, the time from step to step.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stalls.stalled import NAMED, WARNING_SHARE, costs, finding, lost, often
from shardtoll.analyzers.findings.stragglers.step_excess import told_steps
from shardtoll.analyzers.shared import serving_remedies
from shardtoll.analyzers.shared.tally import keep, steps_spoken_of, text
from shardtoll.ledger import Evidence, Figure, Finding, Remedy, Where
from shardtoll.ledger.records.stall import BETWEEN_STEPS
from shardtoll.ledger.words.human import duration, percent, ranks

LEAST_SHARE: Final = 0.05
LEAST_NS: Final = 2_000_000
"""Least waiting in the training's own thread: collating a batch there takes some time by itself."""

ONCE_NS: Final = 40_000_000
"""Least length of a wait that is reported if the rank waits in no other step.

In a shorter one another program may have had the processor, during a fetch that takes no time itself.
Ten programs on two cores made it 12 to 18 ms.
"""

LEAST_GAP_SHARE: Final = 0.2
LEAST_GAP_NS: Final = 10_000_000
"""The same for time between steps whose cause is unknown."""

SHOWN: Final = 8
"""Ranks whose waiting is shown one by one."""

CODE = (
    "loader = DataLoader(dataset, batch_size=batch_size, num_workers=8, pin_memory=True,\n"
    "                    prefetch_factor=4, persistent_workers=True)"
)
TEXT: Final = (
    "Fetch batches in worker processes ahead of the step (`num_workers`), and copy them from pinned "
    "memory. If it does so already, the workers are too slow: add workers, use cheaper transforms or "
    "nearer data, or keep decoded samples."
)
COUNTERFACTUAL: Final = "the same step with its batch ready"


def find(context: Context) -> list[Finding]:
    """Return at most one finding of fetching, else one of time between steps that may be that.

    Toll: per step, on the rank that waits longest. In traces it is idle time inside the step. In audits it is
    that and the fetching before the step, which no step's duration contains.
    """
    rows = context.stalls
    rows = keep(rows, (rows["kind"] == "data") & rows["step"].isin(context.steps))
    findings = _fetched(context, rows) if rows["before_ns"].notna().any() else _idle(context)
    return findings or _between(context)


def _idle(context: Context) -> list[Finding]:
    return [
        finding(
            stall,
            "data-stall",
            f"the device is idle for {costs(stall)} while its batch is fetched, "
            f"{stall.often}, "
            f"on {ranks(stall.line.ranks)}",
            Remedy(serving_remedies.DATA.text, serving_remedies.DATA.code, COUNTERFACTUAL)
            if context.serves
            else Remedy(TEXT, CODE, COUNTERFACTUAL),
            saving_ns=stall.lost_ns,
        )
        for stall in lost(context, "data")
    ]


class Waits(Struct, frozen=True):
    """Waiting of each rank per step, in ns, by rank."""

    before: pd.Series[float]
    inside: pd.Series[float]
    step: pd.Series[float]
    """How long its step takes, without what comes before it."""

    @property
    def all(self) -> pd.Series[float]:
        """Both parts of the waiting."""
        return self.before + self.inside

    @property
    def share(self) -> pd.Series[float]:
        """Share of step and wait."""
        return self.all / (self.step + self.before)


def later_steps(context: Context) -> tuple[int, ...]:
    """Return the steps before which waiting counts: those that the bars show, without the first of the run.

    Before the first one a loader starts its workers and has nothing ready yet. It counts, with all others,
    where there are no more than two.
    """
    if len(context.steps) <= 2:
        return context.steps
    return tuple(step for step in context.timed if step != context.steps[0]) or context.steps[1:]


def inside_steps(context: Context, rows: pd.DataFrame) -> tuple[int, ...]:
    """Return the steps in which waiting inside of a step counts: those of `later_steps` if they show it.

    Steps that were only watched show it if some of them have any. Else the surveyed or traced steps count.
    The first of the run counts only if there is no other.
    """
    later, told = later_steps(context), told_steps(context)
    watched = keep(rows, rows["step"].isin(set(later) - set(told)))
    if watched["lost_ns"].fillna(0).gt(0).any():
        return later
    return tuple(step for step in told if step != context.steps[0] or len(context.steps) <= 2) or told


def waits(context: Context, rows: pd.DataFrame) -> Waits:
    """Return what each rank with a step waits, as its rows of the stalls' table say."""
    later, inside = later_steps(context), inside_steps(context, rows)
    timed = context.timed_rows
    timed = keep(timed, timed["step"].isin(later)) if timed["step"].isin(later).any() else timed
    step = (timed["duration_ns"] - timed["capture_ns"]).groupby(timed["rank"]).mean().astype("float64")

    def each(part: str, steps: tuple[int, ...]) -> pd.Series[float]:
        sums = keep(rows, rows["step"].isin(steps)).groupby("rank")[part].sum().astype("float64")
        return sums.reindex(step.index, fill_value=0.0) / max(1, len(steps))

    return Waits(each("before_ns", later), each("lost_ns", inside), step)


def _fetched(context: Context, rows: pd.DataFrame) -> list[Finding]:
    rows = rows.assign(before_ns=rows["before_ns"].fillna(0))
    of = waits(context, rows)
    # A rank that was held up once hides none that waits again and again.
    all_ns = of.all[~of.all.index.isin(_held_up_once(context, rows))]
    if all_ns.empty or all_ns.max() < LEAST_NS:
        return []
    worst = all_ns.index[int(np.argmax(all_ns.to_numpy()))]
    share, toll, before = float(of.share[worst]), round(float(of.all[worst])), float(of.before[worst])
    if share < LEAST_SHARE:
        return []
    who = tuple(int(rank) for rank in all_ns.index[all_ns >= NAMED * all_ns.max()])
    of_worst = keep(rows, rows["rank"] == worst)
    by_line = of_worst.assign(wait_ns=of_worst["before_ns"] + of_worst["lost_ns"]).groupby(
        ["source", "name"], dropna=False
    )
    source, name = (text(value) for value in by_line["wait_ns"].sum().idxmax())
    later = keep(of_worst, of_worst["step"].isin(later_steps(context)))
    count = round(float(later["count"].sum()) / len(later_steps(context)))
    when = "between steps" if before >= 0.9 * toll else f"{duration(before)} of it between steps"
    when = "inside the step" if before <= 0.1 * toll else when
    by_source = "" if source is None else f", at {source}"
    verb = "waits" if len(who) == 1 else "wait"
    return [
        Finding(
            kind="data-stall",
            severity="warning" if share >= WARNING_SHARE else "info",
            title=f"{ranks(who)} {verb} {duration(toll)} per step ({percent(share)} of step and wait) for "
            f"data, {when}, {often(count)}{by_source}",
            toll_ns=toll,
            floor_ns=None,
            saving_ns=toll,
            bytes=None,
            count=count,
            ranks=who,
            rows=steps_spoken_of(context.step_rows, who, of_worst["step"].unique()),
            where=Where(phase="other", source=source, op=name),
            evidence=(
                Evidence("waits for data on the worst rank, per step", toll, "ns"),
                Evidence("worst rank", int(worst)),
                Evidence("of it before the step, in no step's duration", round(before), "ns"),
                Evidence("the step itself", round(float(of.step[worst])), "ns"),
                Evidence("share of step and wait", round(share, 4), "share"),
                *(
                    Evidence(f"rank {rank} waits, per step", round(float(of.all[rank])), "ns")
                    for rank in of.all.index[:SHOWN]
                ),
            ),
            remedy=Remedy(TEXT, CODE, COUNTERFACTUAL),
            figures=(Figure("before_step_ns", round(before), "ns"),),
            # Behind the host a device may still compute the step before.
            confidence="certain" if context.on_cpu else "possible",
        )
    ]


def _held_up_once(context: Context, rows: pd.DataFrame) -> list[int]:
    """Return the ranks that wait in one of several steps alone, and not for long."""
    later, inside = later_steps(context), inside_steps(context, rows)
    if len(later) <= 2:
        return []
    counts = rows["before_ns"].where(rows["step"].isin(later), 0) + rows["lost_ns"].where(
        rows["step"].isin(inside), 0
    )
    each = counts.groupby([rows["rank"], rows["step"]]).sum().groupby(level="rank")
    often = each.agg(lambda waited: int((waited >= LEAST_NS).sum()))
    return [int(rank) for rank in often.index[(often <= 1) & (each.max() < ONCE_NS)]]


def _between(context: Context) -> list[Finding]:
    """Time between steps that nothing explains, step after step: what a loader of one's own looks like.

    The median over the steps, so that what happens every so many steps (validation, saving) is left out.
    """
    rows = context.stalls
    later = later_steps(context)
    rows = keep(rows, (rows["kind"] == "host") & (rows["name"] == BETWEEN_STEPS) & rows["step"].isin(later))
    if rows.empty:
        return []
    table = rows.pivot_table(index="rank", columns="step", values="before_ns", aggfunc="sum", fill_value=0)
    table = table.reindex(columns=[step for step in later if step != context.steps[0]], fill_value=0)
    gap = table.astype("float64").median(axis=1)
    step = waits(context, rows).step.reindex(gap.index)
    share = gap / (gap + step)
    if gap.empty or gap.max() < LEAST_GAP_NS or not share.max() >= LEAST_GAP_SHARE:
        return []
    worst = gap.index[int(np.argmax(gap.to_numpy()))]
    toll = round(float(gap[worst]))
    who = tuple(int(rank) for rank in gap.index[gap >= NAMED * gap.max()])
    return [
        Finding(
            kind="data-stall",
            severity="info",
            title=f"{duration(toll)} pass between steps ({percent(float(share[worst]))} of step and gap "
            f"together) on {ranks(who)}. No record says why: it may be batches made without a DataLoader, "
            "logging or saving",
            toll_ns=toll,
            floor_ns=None,
            saving_ns=None,
            bytes=None,
            count=1,
            ranks=who,
            rows=steps_spoken_of(context.step_rows, who, rows["step"].unique()),
            where=Where(phase="other"),
            evidence=(
                Evidence("median gap on the worst rank", toll, "ns"),
                Evidence("worst rank", int(worst)),
                *(
                    Evidence(f"rank {rank}, median gap", round(float(gap[rank])), "ns")
                    for rank in gap.index[:SHOWN]
                ),
            ),
            remedy=Remedy(
                "Make batches ahead of the step, in a DataLoader's workers or a thread. Log and save less "
                "often, or during the next step.",
                CODE,
            ),
            figures=(Figure("before_step_ns", toll, "ns"),),
            confidence="possible",
        )
    ]
