"""A predicted saving against the measured one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardtoll.analyzers.compare_steps import LEAST_STEPS
from shardtoll.analyzers.step_change import change, timed_words
from shardtoll.analyzers.words import duration
from shardtoll.ledger import Report
from shardtoll.ledger.levels import watched_steps
from shardtoll.ledger.verification import Judged, Kept, Saving


def saving(before: Report, after: Report, judged: Sequence[Judged], rest: Sequence[Judged]) -> Saving:
    """Compare what the judged findings predicted with what the step's time became.

    A saving is an upper bound, so it is kept where the step became shorter by no more than that; what the
    `rest` of the bill predicted of what is gone with it counts too, for the step's time knows no cause.
    """
    found = change(before, after)
    # Findings overlap, and some were measured in other steps: no more than the whole step can be saved.
    predicted, besides = _predicted(judged), _predicted(rest)
    step = _whole(found.before_ns)
    if predicted is not None and step is not None:
        predicted = min(predicted, step)
    if besides is not None and step is not None:
        besides = min(besides, step - (predicted or 0))
    measured = found.saved_ns
    others = "gone" if all(one.after is None for one in rest if _counts(one)) else "gone or smaller"
    steps = min(found.steps_before, found.steps_after)
    kept, why = _kept(measured, (found.low_ns, found.high_ns), predicted, besides, others)
    if 2 <= steps < LEAST_STEPS:
        # An interval of few steps is too narrow where they hang together: it proves nothing by itself.
        kept = "cannot be told" if kept in ("kept", "exceeded", "longer") else kept
        why += f"; of {steps} steps only, which say little of how much they vary: {LEAST_STEPS} are needed"
    if _slowed(before) != _slowed(after):
        # What a survey costs besides its own time on record would count as saved.
        kept, why = "cannot be told", "one of the runs was only surveyed: its steps are slower for that"
    return Saving(
        before_ns=_whole(found.before_ns),
        after_ns=_whole(found.after_ns),
        measured_ns=_whole(measured),
        low_ns=_whole(found.low_ns),
        high_ns=_whole(found.high_ns),
        predicted_ns=predicted,
        steps_before=found.steps_before,
        steps_after=found.steps_after,
        kept=kept,
        why=why,
        timed=timed_words(before, after),
    )


def _counts(one: Judged) -> bool:
    return one.finding.saving_ns is not None and one.verdict in ("gone", "smaller")


def _slowed(report: Report) -> bool:
    """Whether all steps that can be timed were surveyed, which a trace's are not."""
    return report.run.source == "live" and not watched_steps(report.tables["steps"])


def _predicted(judged: Iterable[Judged]) -> int | None:
    """Return what all that is gone, or smaller, was to save; None where nothing was claimed for it."""
    parts = []
    for one in judged:
        claimed = one.finding.saving_ns
        if claimed is None or not _counts(one):
            continue
        if one.after is not None:
            was, now = one.finding.toll_ns, one.after.toll_ns
            claimed = min(claimed, max(0, was - now)) if was is not None and now is not None else claimed
        parts.append(claimed)
    return sum(parts) if parts else None


def _kept(
    measured: float | None,
    interval: tuple[float | None, float | None],
    predicted: int | None,
    besides: int | None,
    others: str,
) -> tuple[Kept, str]:
    low, high = interval
    if measured is None:
        return "cannot be told", "one of the runs has no timed step"
    if low is None or high is None:
        return "cannot be told", f"{_shorter(measured)}, of too few steps to say how surely"
    told = f"{_shorter(measured)} ({_signed(low, high)} to {_signed(high, low)})"
    if high < 0:
        return "longer", f"{told}: what the change costs is more than what it saves"
    if predicted is None:
        return "none made", f"{told}; no saving was predicted for what is gone"
    most = predicted + (besides or 0)
    also = f", and {duration(besides)} by other findings that are {others} too" if besides else ""
    bound = f"at most {duration(predicted)} was predicted{also}"
    if low > most:
        return "exceeded", f"{told}; {bound}: the bound was too low, or more than this was changed"
    if low <= 0:
        return "not seen", f"{told}, which cannot be told from no change; {bound}"
    return "kept", f"{told}; {bound}"


def _shorter(measured: float) -> str:
    return f"the step is {duration(abs(measured))} {'longer' if measured < 0 else 'shorter'}"


def _signed(time_ns: float, other_ns: float) -> str:
    """Return one end of the interval; which way it points is said where the two ends differ in that."""
    if time_ns * other_ns >= 0:
        return duration(abs(time_ns))
    return f"{duration(abs(time_ns))} {'longer' if time_ns < 0 else 'shorter'}"


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
