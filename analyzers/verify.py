"""What a change did: findings gone or not, gradients equal or not, saving kept or not. Two reports in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.analyzers.comparable import warnings
from shardtoll.analyzers.gradient_equality import compare
from shardtoll.analyzers.looked_at import unseen
from shardtoll.analyzers.same_finding import paired
from shardtoll.analyzers.saved import saving
from shardtoll.analyzers.step_figures import figures
from shardtoll.analyzers.words import duration, flops, size
from shardtoll.ledger import Finding, Report, UsageError
from shardtoll.ledger.scores import pair_of
from shardtoll.ledger.verification import Judged, Quantity, Verdict, Verification

FLOPS: Final = "FLOPs too many a step"
COUNTED: Final = ("latency-bound", "duplicated-data")
"""Kinds whose remedy changes how often something happens, not how many bytes it moves."""
MOVED: Final = (
    "implicit-redistribute",
    "redundant-collective",
    "sync-every-microbatch",
    "cross-node-traffic",
    "wide-dtype",
)
"""Kinds whose remedy moves fewer bytes."""
FAMILIES: Final = ("correctness", "compute")
"""Families whose findings a right fix takes off the bill, whatever the machine does meanwhile."""
EXACT: Final = 0.99
"""Bytes, counts and FLOPs below this part of what they were are fewer."""
TIMED: Final = 0.75
"""The same of times, which vary from run to run."""


def numbered(report: Report) -> list[tuple[int, Finding]]:
    """Return the findings with their numbers on the bill: errors first, otherwise as they stand."""
    return list(enumerate(sorted(report.findings, key=lambda found: found.severity != "error"), start=1))


def verify(before: Report, after: Report, names: tuple[str, str], wanted: Sequence[str] = ()) -> Verification:
    """Compare two runs, called `names`.

    `wanted`: numbers on the bill of the run before, or kinds; none means its errors, and those warnings that
    a fix takes away whatever the machine does. Its other warnings are of times, which vary from run to run
    (late ranks, exposed communication): they are told, not judged. What is said about the record itself is
    never judged unless it is wanted. Raises UsageError where the run before has no such finding.
    """
    bill = numbered(before)
    chosen = _chosen(bill, wanted, names[0])
    pairs = paired([finding for _, finding in bill], after.findings)
    all_judged = [
        _judged(number, finding, after.findings[pairs[at]] if at in pairs else None, before, after)
        for at, (number, finding) in enumerate(bill)
    ]
    judged = tuple(one for one in all_judged if one.number in chosen)
    rest = [one for one in all_judged if one.number not in chosen]
    also = [one for one in rest if one.finding.severity != "info" and one.finding.family != "trust"]
    known = set(pairs.values())
    return Verification(
        before=names[0],
        after=names[1],
        pair=pair_of(before, after),
        findings=judged,
        new=tuple(
            finding
            for at, finding in enumerate(after.findings)
            if at not in known and finding.family != "trust"
        ),
        gradients=compare(before, after, tuple(one.finding for one in judged)),
        saving=saving(before, after, judged, rest),
        quantities=figures(before, after),
        warnings=warnings(before, after),
        also=() if wanted else tuple(also),
    )


def _chosen(bill: Sequence[tuple[int, Finding]], wanted: Sequence[str], name: str) -> set[int]:
    if not wanted:
        return {number for number, finding in bill if _judged_unasked(finding)}
    chosen: set[int] = set()
    for word in wanted:
        found = {number for number, finding in bill if word in (str(number), finding.kind)}
        if not found:
            kinds = ", ".join(dict.fromkeys(finding.kind for _, finding in bill))
            there = f"give 1 to {len(bill)}, or one of {kinds}" if bill else "its bill is empty"
            raise UsageError(f"{name} has no finding {word!r}", there)
        chosen |= found
    return chosen


def _judged_unasked(finding: Finding) -> bool:
    if finding.family == "trust" or finding.severity == "info":
        return False
    return finding.severity == "error" or finding.family in FAMILIES or finding.kind in (*COUNTED, *MOVED)


def _judged(number: int, finding: Finding, left: Finding | None, before: Report, after: Report) -> Judged:
    own = _quantity(finding, left)
    verdict: Verdict
    if left is not None:
        verdict, why = _left(own, left)
        return Judged(number, finding, verdict, why, left, own)
    blind = unseen(finding, before, after)
    if blind is not None:
        return Judged(number, finding, "cannot be told", blind)
    return Judged(number, finding, "gone", "not on the bill of the run after", None, own)


def _left(own: Quantity, left: Finding) -> tuple[Verdict, str]:
    if own.before is None or own.after is None:
        return "still there", left.title
    limit = TIMED if own.unit == "ns" else EXACT
    was, now = (_words(value, own) for value in (own.before, own.after))
    if own.before > 0 and own.after < limit * own.before:
        return "smaller", f"{own.name} {was} before, {now} after ({1 - own.after / own.before:.0%} less)"
    larger = own.after * limit > own.before
    return "still there", f"{own.name} {was} before, {now} after" + (": it is larger" if larger else "")


def _words(value: float, own: Quantity) -> str:
    if own.unit == "ns":
        return duration(value)
    if own.unit == "bytes":
        return size(int(value))
    if own.unit == "FLOP":
        return flops(round(value))
    return f"{value:,.0f}" if own.unit is None else f"{value:,.4g} {own.unit}"


def _quantity(finding: Finding, left: Finding | None) -> Quantity:
    """Return the figure that the kind's remedy changes; none of it is left where the finding is gone."""
    flops = _flops(finding)
    if flops is not None:
        return Quantity(FLOPS, "FLOP", flops, 0.0 if left is None else _flops(left))
    if finding.kind in MOVED and finding.bytes is not None:
        return Quantity("bytes a step", "bytes", finding.bytes, 0 if left is None else left.bytes)
    if finding.kind in COUNTED or finding.toll_ns is None:
        return Quantity("times a step", None, finding.count, 0 if left is None else left.count)
    return Quantity("toll", "ns", finding.toll_ns, 0 if left is None else left.toll_ns)


def _flops(finding: Finding) -> float | None:
    values = [item.value for item in finding.evidence if item.label == FLOPS]
    return float(values[0]) if values and isinstance(values[0], (int, float)) else None
