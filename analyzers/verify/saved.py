"""Predicted savings against measured ones: of two runs, and of all that were verified so far, by kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from shardtoll.analyzers.compare.compare import compare, slowest_change
from shardtoll.analyzers.compare.compare_words import machine_words
from shardtoll.analyzers.two_runs.pair import LEAST_INTERVAL, TwoRuns
from shardtoll.analyzers.two_runs.steps import LEAST_STEPS, Chosen
from shardtoll.ledger import Report
from shardtoll.ledger.answers.comparison import Change
from shardtoll.ledger.answers.overlap import Overlap
from shardtoll.ledger.answers.verification import Judged, Kept, Saving
from shardtoll.ledger.report.scores import KindScore, Score, ScoredFinding
from shardtoll.ledger.words.human import duration

ENDS: Final = ("saving_ns", "saving_low_ns", "saving_high_ns")
"""A finding's fields for its predicted saving, and for the ends of its band."""


_NAMES: Final = ("the run before", "the run after")


def saving(runs: TwoRuns, judged: Sequence[Judged], rest: Sequence[Judged]) -> Saving:
    """Compare what the judged findings predicted with what the step's time became.

    Whether the step changed is what `compare` says of it: both commands judge by one rule.
    A saving is an upper bound, or the high end of a band is one. So it is kept if the step became shorter by
    no more than that. The prediction of the `rest` of the bill counts too if its finding is gone as well: the
    step's time knows no cause.
    """
    counts = len(runs.slowest[0]), len(runs.slowest[1])
    # A forecast has no noise: one step of each run is enough, as for `compare`.
    few = min(counts) < (1 if runs.are_forecasts else LEAST_STEPS)
    comparison = None if few else compare(*runs.reports, _NAMES)
    change = runs.slowest_change() if comparison is None else slowest_change(comparison)
    # Findings overlap, and some were measured in other steps: no more than the whole step can be saved.
    step = _whole(change.before)
    twice = runs.reports[0].overlaps
    predicted, low_end, high_end = (_capped(_predicted(judged, end, twice), step) for end in ENDS)
    besides = _predicted(rest, "saving_high_ns", twice)
    if besides is not None:
        every = _capped(_predicted((*judged, *rest), "saving_high_ns", twice), step)
        besides = max(0, (every or 0) - (high_end or 0))
    # A saving is before less after.
    measured, low, high = (
        None if end is None else 0.0 - end for end in (change.difference, change.high, change.low)
    )
    others = "gone" if all(each.after is None for each in rest if _counts(each)) else "gone or smaller"
    kept, why = _kept(change, high_end, besides, others, forecasts=runs.are_forecasts)
    if kept == "not seen" and comparison is not None:
        why += machine_words(comparison)
    replayed = any(each.finding.replayed is not None for each in judged if _counts(each))
    if replayed and predicted is not None:
        why += f"; replay predicted {duration(predicted)} ({duration(low_end)} to {duration(high_end)})"
    if few and min(counts) >= LEAST_INTERVAL:
        # An interval of few steps is too narrow where they hang together: it proves nothing by itself.
        kept = "cannot be told" if kept in ("kept", "exceeded", "longer") else kept
        why += (
            f"; of {min(counts)} steps only, which say little of how much they vary: {LEAST_STEPS} are needed"
        )
    slowed = runs.each(_slowed)
    if slowed[0] != slowed[1]:
        # A survey's cost beyond its own recorded time would count as saved.
        kept, why = "cannot be told", "one of the runs was only surveyed: its steps are slower for that"
    return Saving(
        before_ns=step,
        after_ns=_whole(change.after),
        measured_ns=_whole(measured),
        low_ns=_whole(low),
        high_ns=_whole(high),
        predicted_ns=predicted,
        steps_before=counts[0],
        steps_after=counts[1],
        kept=kept,
        why=why,
        timed=runs.timed_words(),
        predicted_low_ns=low_end if replayed else None,
        predicted_high_ns=high_end if replayed else None,
        left_out_before=runs.chosen[0].left_out,
        left_out_after=runs.chosen[1].left_out,
        besides_ns=besides,
    )


def _counts(judged: Judged) -> bool:
    return judged.finding.saving_ns is not None and judged.shrank


def _slowed(report: Report, chosen: Chosen) -> bool:
    """Whether the timed steps were surveyed, which a trace's are not."""
    return report.run.source == "live" and chosen.level == "surveyed"


def _capped(predicted: int | None, step: int | None) -> int | None:
    return predicted if predicted is None or step is None else min(predicted, step)


def _predicted(judged: Iterable[Judged], end: str, twice: Sequence[Overlap]) -> int | None:
    """Return the predicted saving of all findings that are gone or smaller, or an end of its band; None if
    nothing was claimed for them. An upper bound's band goes down to 0.

    `twice`: the bill's sets of findings that save the same time, which count as the bill counts them.
    """
    parts: dict[int, int] = {}
    for each in judged:
        if each.finding.saving_ns is None or not _counts(each):
            continue
        claimed = getattr(each.finding, end)
        if claimed is None:
            claimed = 0 if end == "saving_low_ns" else each.finding.saving_ns
        if each.after is not None:
            was, now = each.finding.toll_ns, each.after.toll_ns
            claimed = min(claimed, max(0, was - now)) if was is not None and now is not None else claimed
        parts[each.number] = claimed
    return sum(parts.values()) - _counted_twice(parts, twice) if parts else None


def _counted_twice(parts: Mapping[int, int], twice: Sequence[Overlap]) -> int:
    """Return how much of the parts, by finding number, their sum counts twice at least.

    Sets may have members in common: of such, only the one that holds most counts.
    """
    excess = [
        (sum(parts.get(number, 0) for number in overlap.findings) - overlap.most_ns, overlap.findings)
        for overlap in twice
    ]
    seen: set[int] = set()
    total = 0
    for too_much, numbers in sorted(excess, key=lambda each: (-each[0], each[1])):
        if too_much > 0 and seen.isdisjoint(numbers):
            total += too_much
            seen.update(numbers)
    return total


def _kept(
    change: Change, predicted: int | None, besides: int | None, others: str, *, forecasts: bool
) -> tuple[Kept, str]:
    """Return the outcome of a predicted saving and why; `change`: that of the step of the slowest rank."""
    if change.difference is None:
        return "cannot be told", "one of the runs has no timed step"
    measured = 0.0 - change.difference
    if change.low is None or change.high is None:
        return "cannot be told", f"{_shorter(measured)}, of too few steps to say how surely"
    low, high = 0.0 - change.high, 0.0 - change.low
    became = _shorter(measured)
    # Two forecasts differ by one figure.
    became += "" if forecasts else f" ({_signed(low, high)} to {_signed(high, low)})"
    if change.verdict == "more":
        return "longer", f"{became}: what the change costs is more than what it saves"
    if predicted is None:
        return "none made", f"{became}; no saving was predicted for what is gone"
    most = predicted + (besides or 0)
    also = f", and {duration(besides)} by other findings that are {others} too" if besides else ""
    bound = f"at most {duration(predicted)} was predicted{also}"
    if change.verdict != "less":
        least = f"at most {duration(change.least)}: no change between forecasts"
        return "not seen", f"{became}, which is {least if forecasts else 'within noise'}; {bound}"
    if low > most:
        return "exceeded", f"{became}; {bound}: the bound was too low, or more than this was changed"
    return "kept", f"{became}; {bound}"


def _shorter(measured: float) -> str:
    if not measured:
        return "the step takes as long as before"
    return f"the step is {duration(abs(measured))} {'longer' if measured < 0 else 'shorter'}"


def _signed(time_ns: float, other_ns: float) -> str:
    """Return one end of the interval; which way it points is said where the two ends differ in that."""
    if time_ns * other_ns >= 0:
        return duration(abs(time_ns))
    return f"{duration(abs(time_ns))} {'longer' if time_ns < 0 else 'shorter'}"


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def history(scores: Sequence[Score]) -> list[KindScore]:
    """Return one line a kind, most verified first. For a pair verified again the last time counts."""
    last: dict[tuple[str, str, str], tuple[ScoredFinding, Score]] = {}
    for score in scores:
        for finding in score.findings:
            last[score.pair, finding.kind, finding.place] = (finding, score)
    kinds: dict[str, list[tuple[ScoredFinding, Score]]] = {}
    for finding, score in last.values():
        kinds.setdefault(finding.kind, []).append((finding, score))
    return sorted(
        (_line(kind, of) for kind, of in kinds.items()), key=lambda line: (-line.verified, line.kind)
    )


def _line(kind: str, of: Sequence[tuple[ScoredFinding, Score]]) -> KindScore:
    verdicts = [finding.verdict for finding, _ in of]
    # The step's time is of a verification as a whole: it counts once, however many findings it judged.
    gone = _once(
        score for finding, score in of if finding.verdict == "gone" and finding.predicted_ns is not None
    )
    ratios = [ratio for ratio in map(_ratio, gone) if ratio is not None]
    held = [
        score.held
        for score in _once(score for finding, score in of if finding.replayed and finding.verdict == "gone")
        # Lines of earlier versions say held even if the outcome is unknown.
        if score.held is not None and score.kept != "cannot be told"
    ]
    return KindScore(
        kind=kind,
        verified=len(of),
        gone=verdicts.count("gone"),
        smaller=verdicts.count("smaller"),
        still=verdicts.count("still there"),
        unknown=verdicts.count("cannot be told"),
        exceeded=sum(score.kept == "exceeded" for score in gone),
        ratio=sum(ratios) / len(ratios) if ratios else None,
        timed=len(ratios),
        bands=len(held),
        held=sum(held),
    )


def _once(scores: Iterable[Score]) -> list[Score]:
    return list({id(score): score for score in scores}.values())


def _ratio(score: Score) -> float | None:
    """Return measured / predicted; None if the step's time varies by more than was predicted."""
    if score.measured_ns is None or score.low_ns is None or score.high_ns is None or not score.predicted_ns:
        return None
    if score.high_ns - score.low_ns > 2 * score.predicted_ns:
        return None
    return score.measured_ns / score.predicted_ns
