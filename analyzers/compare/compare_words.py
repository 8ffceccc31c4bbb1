"""Sentences of a comparison: the answer in one line, why the runs differ, what was left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardtoll.analyzers.compare.batch import words as batch_words
from shardtoll.analyzers.compare.causes import signed
from shardtoll.analyzers.compare.compare_ranks import rank_words
from shardtoll.analyzers.two_runs.pair import SLOWEST
from shardtoll.analyzers.two_runs.steps import LEAST_STEPS, UNTOLD, StepSeries
from shardtoll.ledger.answers.comparison import (
    LEAST_EXPLAINED,
    Batch,
    Change,
    Comparison,
    FindingChange,
    Side,
    leading,
)
from shardtoll.ledger.words.human import duration, some_time
from shardtoll.ledger.words.human import plural as times

NAMED: Final = 3
"""Causes in the first line."""


def with_headline(comparison: Comparison) -> Comparison:
    """Return the comparison with its answer in one line."""
    if comparison.verdict == "changed":
        return replace(comparison, headline=_changed(comparison))
    if comparison.verdict == "too few steps":
        counts = f"{comparison.before.timed_steps} before, {comparison.after.timed_steps} after"
        same = "collectives, bytes and formats are the same"
        return replace(
            comparison,
            headline=f"too few steps to tell times from noise ({counts}, {LEAST_STEPS} are needed); {same}",
        )
    # The step of a run, as its report has it, is that of the slowest rank.
    step = _slowest(comparison) or comparison.step
    text = (
        f"no change beyond noise: a step takes {some_time(step.before)} before, {some_time(step.after)} after"
        + (" on the slowest rank" if _of_several(comparison) else "")
    )
    if step.least is not None and step.before:
        share = 100 * step.least / step.before
        text += f"; a change of {duration(step.least)} ({share:.3g} %) would have been seen"
    return replace(comparison, headline=text + machine_words(comparison) + _led(comparison, step))


def _slowest(comparison: Comparison) -> Change | None:
    return next((each for each in comparison.totals if each.name == SLOWEST), None)


def _of_several(comparison: Comparison) -> bool:
    """Whether a mean over ranks is another figure than the step of the slowest one."""
    return max(comparison.before.ranks_seen, comparison.after.ranks_seen) > 1


def machine_words(comparison: Comparison) -> str:
    """Return that a shared machine was busier in one of the runs, to go on a sentence; empty if not known."""
    state = comparison.machine
    if state is None or not state.shared or not state.apart:
        return ""
    how = (
        "all by the same factor: a busier machine, or a change that slows every operator"
        if state.alike
        else "not all by the same factor: a busier machine, or a change of many modules; run both again"
    )
    if state.factor < 1:
        how = how.replace("busier", "less busy").replace("slows", "quickens")
    return f"; but the same operators took {state.factor:.3g} times as long, {how}"


def _first_rank(comparison: Comparison, change: Change) -> Change | None:
    """Return the rank whose own time explains half of a change or more; None if none does."""
    most = max(comparison.ranks, key=lambda rank: abs(rank.difference or 0.0), default=None)
    if most is None or not most.difference or not change.changed or not change.difference:
        return None
    return most if most.difference / change.difference >= LEAST_EXPLAINED else None


def _led(comparison: Comparison, change: Change) -> str:
    """Return which finding explains most of a change, to go on a sentence.

    Empty if none does, and of a change that is noise: nothing explains that.
    """
    finding = leading(comparison, change.difference) if change.changed else None
    return "" if finding is None else f"; most on the bills: {finding_words(finding)}"


def finding_words(finding: FindingChange) -> str:
    """Return `straggler at rank 1 (58.2 ms before, gone)` or the like."""
    was, now = (None if toll is None else duration(toll) for toll in finding.toll_ns)
    if finding.after is None:
        became = f"{was} before, gone"
    elif finding.before is None:
        became = f"new, {now}"
    else:
        became = f"{was or 'no price'} before, {now or 'no price'} after"
    # Which rank is late says more than where in its step.
    where = finding.place if finding.rank is None else f"rank {finding.rank}"
    return f"{finding.kind} at {where} ({became})"


def _changed(comparison: Comparison) -> str:
    step = comparison.step
    slowest = _slowest(comparison) if _of_several(comparison) else None
    # The step of a run, as its report has it, is that of the slowest rank. Causes add up to the mean.
    change = slowest if slowest is not None and slowest.changed else step
    lead = leading(comparison, change.difference) if change.changed else None
    causes = [cause.text for cause in comparison.causes[:NAMED]]
    first = _first_rank(comparison, change)
    leads = [
        *([] if first is None else [rank_words(first)]),
        *([] if lead is None else [finding_words(lead)]),
    ]
    named = "; ".join([*leads, *causes])
    more = len(comparison.causes) - NAMED
    named += f"; and {more} more" if more > 0 else ""
    alone = "".join(f"; {rank_words(rank)}" for rank in comparison.ranks[:NAMED] if rank is not first)
    if not change.changed:
        time = "its step's time" if slowest is None or slowest.low is None else "the slowest rank's step"
        time += f" {_within_noise(slowest or step)}"
        return f"the program changed, {time}: {named or 'the bill has other errors'}{alone}"
    text = f"a step takes {_by(step)}" if slowest is None else _both(slowest, step)
    if not step.changed:
        return f"{text}{named and ': '}{named}{alone}"
    assert step.difference is not None, "a change is known"
    if comparison.unexplained_ns is None or not comparison.causes:
        if leads:
            return f"{text}: {'; '.join(leads)}{alone}"
        return f"{text}; no cause on record accounts for it{alone}"
    # Remainders of sums in the last digits count as zero.
    left = round(100 * comparison.unexplained_ns / step.difference, 3) + 0.0
    whole = "it" if slowest is None else "the mean's change"
    return f"{text}: {named}. Together {100 - left:.3g} % of {whole}, {left:.3g} % unexplained{alone}"


def _both(slowest: Change, mean: Change) -> str:
    """Return how the slowest rank's step changed, and the mean of the ranks; one of them did."""
    if not slowest.changed:
        return (
            f"the slowest rank's step {_within_noise(slowest)}, but the mean of the ranks takes {_by(mean)}"
        )
    took = _by(slowest)
    of_mean = f"but the mean of the ranks {_within_noise(mean)}"
    if mean.changed:
        same = _by(mean) == took
        of_mean = "and the mean of the ranks as much" if same else f"the mean of the ranks {_by(mean)}"
    return f"the slowest rank's step takes {took}, {of_mean}"


def _within_noise(change: Change) -> str:
    """Return that a time did not change, with its interval if that is known."""
    if change.low is None or change.high is None:
        return "is within noise"
    return f"is within noise ({signed(change.low)} to {signed(change.high)})"


def _by(change: Change) -> str:
    """Return by how much a time changed, with its interval."""
    assert change.difference is not None, "a change is known"
    assert change.low is not None, "and its interval"
    assert change.high is not None, "and its interval"
    share = 100 * change.difference / change.before if change.before else 0
    # Two forecasts differ by one figure.
    between = "" if change.low == change.high else f", {signed(change.low)} to {signed(change.high)}"
    return (
        f"{duration(abs(change.difference))} {'longer' if change.difference > 0 else 'less'} "
        f"({share:+.3g} %{between})"
    )


def alike(before: Side, after: Side, same_level: bool) -> tuple[str, ...]:
    """Return one sentence for each way in which the work of the runs differs."""
    said = []
    if before.batch.rows_of == after.batch.rows_of and _batches_differ(before, after):
        words = [batch_words(side.batch, side.world_size) for side in (before, after)]
        given = (
            "" if before.work is not None else "; give --work-before and --work-after to compare equal work"
        )
        said.append(
            f"effective batch {words[0]} before, {words[1]} after, by the {before.batch.rows_of}{given}"
        )
    if not same_level:
        said.append(
            f"steps were {before.level} before, {after.level} after: their times are not compared, as a "
            "survey makes steps longer"
        )
    return tuple(said)


def _batches_differ(before: Side, after: Side) -> bool:
    """Whether a step is known to train on other numbers of samples or tokens."""
    samples, tokens = (
        [whole(side.batch, side.world_size) for side in (before, after)]
        for whole in (Batch.effective, Batch.effective_tokens)
    )
    return any(None not in sizes and sizes[0] != sizes[1] for sizes in (samples, tokens))


def notes(before: Side, after: Side) -> tuple[str, ...]:
    """Return what was left out and what is not known."""
    said = []
    for word, side in (("before", before), ("after", after)):
        left = (
            f"steps {side.left_out[0]} to {side.left_out[-1]}" if len(side.left_out) > 1 else "the first step"
        )
        out = f"; {left} left out, to warm up" if side.left_out else ""
        if side.slow_start:
            slow = ", ".join(map(str, side.slow_start))
            out += f" (step {slow} as slow against the rest; --warm-up N says how many)"
        said.append(
            f"{word}: {times(side.timed_steps, f'{side.level} step')} timed, {side.surveyed_steps} with "
            f"operators on record{out}; effective batch {batch_words(side.batch, side.world_size)}"
        )
    few = min(before.surveyed_steps, after.surveyed_steps)
    if few < LEAST_STEPS <= min(before.timed_steps, after.timed_steps):
        counts = f"{times(before.surveyed_steps, 'step')} before and {after.surveyed_steps} after"
        said.append(
            f"times of modules are not judged: {counts} were surveyed, {LEAST_STEPS} of each are "
            'needed; record both with audit(level="survey"), or survey_every=2 and 18 steps or more'
        )
    return tuple(said)


def exposure(before: StepSeries, after: StepSeries) -> tuple[str, ...]:
    """Return a sentence for each run whose steps do not tell all of their exposed communication."""
    said = []
    for word, side in (("before", before), ("after", after)):
        if side.untold:
            said.append(
                f"{word}: in {times(side.untold, 'step')} of {len(side.own)} nothing tells how long "
                f"communication was exposed, so moving and waiting are unknown and count in {UNTOLD}"
            )
        if side.at_least:
            said.append(
                f"{word}: of some collectives of {times(side.at_least, 'step')} exposed time is not known. "
                f"The record holds a lower bound, so moving and waiting count in {UNTOLD}"
            )
    return tuple(said)
