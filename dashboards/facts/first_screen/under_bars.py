"""Sentences under the bars of a step: waiting between steps, uneven compute, idle time in no finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow.compute as pc

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.dashboards.facts.first_screen import first_facts, hung
from shardtoll.dashboards.facts.step_times import RankTime
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.records.columns import literal
from shardtoll.ledger.records.levels import in_steps, surveyed_steps
from shardtoll.ledger.records.work import total_flops
from shardtoll.ledger.words import human

LEAST_SHARE: Final = 0.05
"""Part of the longest step from which earlier waiting is mentioned."""
UNEVEN: Final = 1.25
"""Compute of one rank over that of another from which the difference is explained."""
EQUAL: Final = 1.01
"""FLOPs of one rank over those of another up to which their work is equal."""
TELLING: Final = 0.01
"""Part of the step from which its recording makes two shares of one time."""
_WAITS: Final = {
    "data-stall": "a batch",
    "checkpoint-stall": "a checkpoint",
}
"""Kind of a finding -> the thing that a rank waits for before its step."""


def sentences(report: Report) -> list[str]:
    """Return what bars cannot show, most important first; empty if they show everything."""
    said = (uneven_compute(report), not_explained(report))
    return [*between_steps(report), *(each for each in said if each is not None)]


def below_verdict(report: Report) -> list[str]:
    """Return what stands between verdict and bill in a view that has no bars there."""
    return [each for each in (summary.second_line(report), besides_second_line(report)) if each is not None]


def besides_second_line(report: Report) -> str | None:
    """Return `not_explained` unless the second line says it otherwise, or ranks hang."""
    if summary.unbilled_leads(report) or hung.hang_of(report) is not None:
        return None
    return not_explained(report)


def between_steps(report: Report) -> list[str]:
    """Return a sentence for each finding on time before the step, which is in no bar, if it is long."""
    longest = max((time.step_ns for time in step_times.rank_times(report)), default=0.0)
    said = []
    for number, finding in enumerate(report.findings, start=1):
        before_ns = finding.figure("before_step_ns") or 0
        if finding.kind in _WAITS and before_ns > LEAST_SHARE * longest:
            known = finding.where.source or finding.where.op
            why = f" of waiting for {_WAITS[finding.kind]}" if known else ", no record says why"
            said.append(
                f"Between steps, in no bar: {human.duration(before_ns)} per step{why} "
                f"({_who(finding, report)}, finding {number})."
            )
    return said


def uneven_compute(report: Report) -> str | None:
    """Return why CPU ranks with equal work compute for unequal times; None if they do not, or one is late.

    A rank that the system took off its core still has an operator running: compute counts that time.
    """
    times = [time for time in step_times.rank_times(report) if time.parts_ns[0] is not None]
    if report.run.device != "cpu" or len(times) < 2 or not _equal_work(report, times):
        return None
    most, least = (pick(times, key=lambda time: time.parts_ns[0] or 0.0) for pick in (max, min))
    high, low = (time.parts_ns[0] or 0.0 for time in (most, least))
    longest = max(time.total_ns for time in times)
    unsure = max(LEAST_SHARE * longest, summary.parts_error_ns(report) or 0.0)
    if high < UNEVEN * low or high - low < unsure or most.ranks[0] in first_facts.waited_for(report):
        return None
    shared = any(each.kind == "cores-shared" for each in report.notices)
    why = "ranks share cores" if shared else "other threads or programs use the cores"
    return (
        f"Equal work, unequal compute: {human.duration(high)} on rank {most.ranks[0]}, {human.duration(low)} "
        f"on rank {least.ranks[0]}: {why}."
    )


def _equal_work(report: Report, times: Sequence[RankTime]) -> bool:
    """Return whether the surveyed steps of these ranks hold equal FLOPs; False if they are unknown."""
    computes = in_steps(report.tables["computes"], surveyed_steps(report.tables["steps"]))
    flops = [
        total_flops(computes.filter(pc.equal(computes.column("rank"), literal(time.ranks[0]))))
        for time in times
    ]
    return min(flops) > 0 and max(flops) <= EQUAL * min(flops)


def not_explained(report: Report) -> str | None:
    """Return how much idle time is in no finding, its possible cause and what to record; None without any.

    The verdict leaves to this line how to find its code. So each view has it, or the second line instead.
    """
    unbilled, run = report.unbilled, report.run
    if unbilled is None or not unbilled.idle:
        return None
    # The verdict holds it to the step without its recording, the bars to the whole: no share is both.
    recorded = any(
        time.capture_ns >= TELLING * time.total_ns and time.recorded_whole
        for time in step_times.rank_times(report)
    )
    share = "" if recorded else f" ({human.share(unbilled.time_ns, unbilled.step_ns)})"
    time = human.duration(unbilled.time_ns)
    head = f"Idle, in no finding: {time}{share} on rank {unbilled.rank}"
    did = summary.doing(unbilled)
    if did is not None:
        return f"{head}: {did}."
    if run.device == "cpu" or (run.device is None and run.source == "live"):
        why = "Python, loading or sleep"
    else:
        why = "the host launches nothing then"
    return f"{head}: {why}{summary.how_to_find(run)}."


def _who(finding: Finding, report: Report) -> str:
    return summary.some_ranks(finding, report.run) or "all ranks"
