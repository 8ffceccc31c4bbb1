"""Effects of a change: findings gone or not, gradients equal or not, saving kept or not. Two reports in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.analyzers.two_runs.comparable import warnings
from shardtoll.analyzers.two_runs.pair import TwoRuns
from shardtoll.analyzers.two_runs.same_finding import both_bills
from shardtoll.analyzers.two_runs.steps import LEAST_STEPS
from shardtoll.analyzers.verify.gradient_equality import compare
from shardtoll.analyzers.verify.looked_at import unseen
from shardtoll.analyzers.verify.saved import saving
from shardtoll.analyzers.verify.step_figures import figures
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.answers.verification import Judged, Quantity, Verdict, Verification
from shardtoll.ledger.report.asked import asked
from shardtoll.ledger.report.scores import pair_of
from shardtoll.ledger.words.human import duration, size
from shardtoll.ledger.words.human import work as flops

FLOPS: Final = "needless FLOPs per step"
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
MOST_NOISE: Final = 0.5
"""Largest noise of the two runs, as a part of a toll, at which a smaller rest of it counts as noise."""
MOST_LEFT: Final = 1 / 6
"""Largest part of a toll that may be left of one that is gone: a noisier run does not hide more of it."""


def verify(before: Report, after: Report, names: tuple[str, str], wanted: Sequence[str] = ()) -> Verification:
    """Compare two runs, called `names`.

    `wanted`: findings of the run before, as `asked` takes them. None given means its errors, and the warnings
    that a fix removes on any machine. The step's time is then held to all that promised a saving. Infos and
    warnings of times (late ranks, exposed communication) decide nothing: times vary from run to run. Findings
    about the record itself are never judged unless wanted. Raises UsageError if the run before has no such
    finding.
    """
    runs = TwoRuns.of(before, after)
    bills = both_bills(before, after)
    chosen = _chosen([was for was, _ in bills if was is not None], wanted, names[0])
    noise_ns = _noise_ns(runs)
    all_judged = [
        _judged(*was, None if now is None else now[1], before, after, noise_ns)
        for was, now in bills
        if was is not None
    ]
    judged = [each for each in all_judged if each.number in chosen]
    rest = [each for each in all_judged if each.number not in chosen]
    also = () if wanted else tuple(each for each in all_judged if _is_listed(each))
    return Verification(
        before=names[0],
        after=names[1],
        pair=pair_of(before, after),
        findings=tuple(each for each in judged if wanted or _decides(each.finding)),
        new=tuple(
            now[1] for was, now in bills if was is None and now is not None and now[1].family != "trust"
        ),
        gradients=compare(before, after, tuple(each.finding for each in judged)),
        saving=saving(runs, judged, rest),
        quantities=figures(runs),
        warnings=warnings(runs),
        also=also,
    )


def _chosen(bill: Sequence[tuple[int, Finding]], wanted: Sequence[str], name: str) -> set[int]:
    if not wanted:
        return {number for number, finding in bill if _decides(finding) or _promises(finding)}
    return set(asked(wanted, [finding for _, finding in bill], name))


def _promises(finding: Finding) -> bool:
    return finding.family != "trust" and bool(finding.saving_ns)


def _is_listed(judged: Judged) -> bool:
    """Return whether it stands among those that decide nothing: it has a figure, or is a warning."""
    finding = judged.finding
    worth = judged.promised or finding.severity != "info"
    return worth and finding.family != "trust" and not _decides(finding)


def _decides(finding: Finding) -> bool:
    """Return whether it must be gone though nobody named it: no machine's noise makes it come or go."""
    if finding.family == "trust" or finding.severity == "info":
        return False
    return finding.severity == "error" or finding.family in FAMILIES or finding.kind in (*COUNTED, *MOVED)


def _noise_ns(runs: TwoRuns) -> float | None:
    """Return how far apart steps of the slowest rank may be by noise alone; None of too few steps."""
    if min(map(len, runs.slowest)) < LEAST_STEPS:
        return None
    change = runs.slowest_change()
    return None if change.low is None or change.high is None else (change.high - change.low) / 2


def _judged(
    number: int, finding: Finding, left: Finding | None, before: Report, after: Report, noise_ns: float | None
) -> Judged:
    quantity = _quantity(finding, left)
    verdict: Verdict
    if left is not None:
        verdict, why = _left(quantity, left, noise_ns)
        return Judged(number, finding, verdict, why, left, quantity)
    blind = unseen(finding, before, after)
    if blind is not None:
        return Judged(number, finding, "cannot be told", blind)
    return Judged(number, finding, "gone", "not on the bill of the run after", None, quantity)


def _left(quantity: Quantity, left: Finding, noise_ns: float | None) -> tuple[Verdict, str]:
    if quantity.before is None or quantity.after is None:
        return "still there", left.title
    limit = TIMED if quantity.unit == "ns" else EXACT
    was, now = (_words(value, quantity) for value in (quantity.before, quantity.after))
    shrank = quantity.before > 0 and quantity.after < limit * quantity.before
    if shrank and quantity.unit == "ns" and noise_ns is not None:
        noise = f"the noise of the two runs ({duration(noise_ns)})"
        rest_ns = min(noise_ns, MOST_LEFT * quantity.before)
        if noise_ns <= MOST_NOISE * quantity.before and quantity.after <= rest_ns:
            return "gone", f"{now} of {was} are left, within {noise}"
        if quantity.before - quantity.after <= noise_ns:
            return (
                "cannot be told",
                f"{quantity.name} {was} before, {now} after: the change is within {noise}",
            )
    if shrank:
        less = 1 - quantity.after / quantity.before
        return "smaller", f"{quantity.name} {was} before, {now} after ({less:.0%} less)"
    larger = quantity.after * limit > quantity.before
    return "still there", f"{quantity.name} {was} before, {now} after" + (": it is larger" if larger else "")


def _words(value: float, quantity: Quantity) -> str:
    if quantity.unit == "ns":
        return duration(value)
    if quantity.unit == "bytes":
        return size(int(value))
    if quantity.unit == "FLOP":
        return flops(round(value))
    return f"{value:,.0f}" if quantity.unit is None else f"{value:,.4g} {quantity.unit}"


def _quantity(finding: Finding, left: Finding | None) -> Quantity:
    """Return the figure that the kind's remedy changes; none of it is left where the finding is gone."""
    flops = finding.figure("flops_too_many")
    if flops is not None:
        return Quantity(FLOPS, "FLOP", flops, 0.0 if left is None else left.figure("flops_too_many"))
    if finding.kind in MOVED and finding.bytes is not None:
        return Quantity("bytes per step", "bytes", finding.bytes, 0 if left is None else left.bytes)
    if finding.kind in COUNTED or finding.toll_ns is None:
        return Quantity("times per step", None, finding.count, 0 if left is None else left.count)
    return Quantity("toll", "ns", finding.toll_ns, 0 if left is None else left.toll_ns)
