"""Sentences under the bars of a step: waiting between steps, and idle time that is in no finding."""

from __future__ import annotations

from typing import Final

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.words import human

LEAST_SHARE: Final = 0.05
"""Part of the longest step from which waiting before it is said."""
TELLING: Final = 0.01
"""Part of the step from which its recording makes two shares of one time."""
_WAITS: Final = {
    "data-stall": "a batch",
    "checkpoint-stall": "a checkpoint",
}
"""Kind of a finding -> what a rank waits for before its step."""


def sentences(report: Report) -> list[str]:
    """Return what bars cannot show, most important first; empty if they show everything."""
    idle = not_explained(report)
    return [*between_steps(report), *([] if idle is None else [idle])]


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


def not_explained(report: Report) -> str | None:
    """Return how much idle time is in no finding, what it may be and what to record; None if it is little."""
    unbilled, run = report.unbilled, report.run
    if unbilled is None or not unbilled.idle:
        return None
    error_ns = summary.parts_error_ns(report)
    noise = " (within noise)" if error_ns is not None and unbilled.time_ns < error_ns else ""
    # The verdict holds it to the step without its recording, the bars to the whole: no share is both.
    recorded = any(time.capture_ns >= TELLING * time.total_ns for time in step_times.rank_times(report))
    share = "" if recorded else f" ({human.share(unbilled.time_ns, unbilled.step_ns)})"
    time = human.duration(unbilled.time_ns)
    head = f"Idle, in no finding: {time}{share} on rank {unbilled.rank}{noise}"
    did = summary.doing(unbilled)
    if did is not None:
        return f"{head}: {did}."
    if run.device == "cpu" or (run.device is None and run.source == "live"):
        why = "Python, loading or sleep"
    else:
        why = "the host launches nothing then"
    record = "py-spy dump shows the line" if run.source == "live" else "trace with_stack=True to see its code"
    return f"{head}: {why}; {record}."


def _who(finding: Finding, report: Report) -> str:
    return summary.some_ranks(finding, report.run) or "all ranks"
