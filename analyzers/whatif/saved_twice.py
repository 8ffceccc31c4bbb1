"""Which findings save the same time, so that fixing them all saves less than the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.remedies import edit_of
from shardtoll.analyzers.whatif.replayed import Replayer
from shardtoll.analyzers.whatif.savings import replayer
from shardtoll.ledger import Finding
from shardtoll.ledger.answers.overlap import Overlap
from shardtoll.ledger.answers.what_if import Foreseen

LEAST_PART: Final = 0.1
"""Part of the smaller of two savings that both must count, to be worth a sentence."""

LEAST_SHARE: Final = 0.005
"""The same as a share of the step: runs of one program differ by as much."""

BEFORE_THE_STEP: Final = ("data-stall", "checkpoint-stall")
"""Kinds whose time lies between steps too."""

MOST_FIXES: Final = 8
"""Fixes that are replayed in pairs, the first ones."""


def saved_twice(
    context: Context, findings: Sequence[Finding], path: Foreseen | None, said: Sequence[Overlap]
) -> tuple[Overlap, ...]:
    """Return the sets of findings that save less together by replay than one by one.

    Without those that are part of a set in `said`.
    """
    overlaps = _by_replay(context, findings, path)
    return tuple(
        each for each in overlaps if not any(set(each.findings) <= set(larger.findings) for larger in said)
    )


def _by_replay(context: Context, findings: Sequence[Finding], path: Foreseen | None) -> list[Overlap]:
    made = None if path is None else replayer(context)
    if made is None or path is None:
        return []
    changes = [each for each in path.changes if each.number is not None][:MOST_FIXES]
    steps = [path.before.step_ns, *(each.step_ns for each in changes)]
    least = LEAST_SHARE * made.step_ns
    saves = {each.number: each.saving_ns for each in changes if each.number is not None}
    # Made once: what the replayer has simulated it knows again by the edit itself.
    edits = {number: edit_of(context, findings[number - 1], number) for number in saves}
    sets: list[set[int]] = []
    for change, (was, now) in zip(changes, pairwise(steps), strict=True):
        # Saves on top of those before what it saves alone: it shares nothing with them.
        if change.number is None or change.saving_ns - (was - now) < least:
            continue
        for other in saves:
            if other < change.number and _shared(made, edits, saves, (other, change.number)):
                joined = {other, change.number}
                touched = [each for each in sets if not each.isdisjoint(joined)]
                sets = [each for each in sets if each.isdisjoint(joined)]
                sets.append(joined.union(*touched))
    overlaps = []
    for each in sets:
        together_ns = _together_ns(made, edits, saves, each)
        beyond_ns = sum(_before_the_step_ns(findings[number - 1], saves[number]) for number in each)
        # The bill's upper bounds are shown next to it: both fixes save no less than one of them may.
        most_ns = max(round(together_ns) + beyond_ns, *(findings[n - 1].saving_ns or 0 for n in each))
        overlaps.append(Overlap(tuple(sorted(each)), most_ns, saved=True))
    return overlaps


def _before_the_step_ns(finding: Finding, saves_ns: int) -> int:
    """Return what a fix saves before the step, which no replayed step has: waits for batches and saves."""
    return max(0, (finding.saving_ns or 0) - saves_ns) if finding.kind in BEFORE_THE_STEP else 0


def _shared(
    made: Replayer,
    edits: Mapping[int, Edit | None],
    saves: dict[int, int],
    pair: tuple[int, int],
) -> bool:
    alone = [saves[number] for number in pair]
    shared = sum(alone) - _together_ns(made, edits, saves, pair)
    return shared >= max(LEAST_SHARE * made.step_ns, LEAST_PART * min(alone))


def _together_ns(
    made: Replayer,
    edits: Mapping[int, Edit | None],
    saves: dict[int, int],
    numbers: Sequence[int] | set[int],
) -> float:
    """Return what these fixes save together: at least the largest alone, at most the sum."""
    alone = [saves[number] for number in numbers]
    chosen = [edits[number] for number in sorted(numbers)]
    saved = made.saved([edit for edit in chosen if edit is not None]).mid_ns
    return min(max(saved, *alone), sum(alone))
