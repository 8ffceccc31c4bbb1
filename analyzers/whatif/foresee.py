"""Predicts findings of a bill, its path and its way to the floor by replaying the first steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.whatif.anatomy import of_step
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.remedies import edit_of
from shardtoll.analyzers.whatif.replayed import Replayer
from shardtoll.analyzers.whatif.savings import MOST_EDITS, replayer
from shardtoll.ledger import Finding
from shardtoll.ledger.answers.what_if import Change, Foreseen


def foreseen(context: Context, findings: Sequence[Finding]) -> Foreseen | None:
    """Return the way from today's step to the floor, fix by fix, in the order of the bill."""
    made = replayer(context)
    if made is None:
        return None
    recorded = made.recorded
    edits: list[Edit] = []
    changes: list[Change] = []
    with_toll = [(number, finding) for number, finding in enumerate(findings, start=1) if finding.toll_ns]
    for number, finding in with_toll[:MOST_EDITS]:
        edit = edit_of(context, finding, number)
        if edit is None:
            continue
        edits.append(edit)
        mid, low, high = _saved(made, finding, edit)
        changes.append(
            Change(
                edit.label,
                number,
                finding.kind,
                finding.title,
                finding.toll_ns,
                mid,
                low,
                high,
                round(made.after_ns(edits)),
            )
        )
    before = of_step(made.parts(made.outcome)[made.slowest], made.step_ns)
    return Foreseen(
        source=recorded.source,
        steps=recorded.steps,
        nodes=len(recorded.graph),
        replay_error=made.doubt.replay_error,
        unknown_share=made.doubt.unknown_share,
        before=before,
        changes=tuple(changes),
        floor_ns=_floor(context, made, edits),
        path=made.path,
        tried=min(len(with_toll), MOST_EDITS),
        without_capture=recorded.captured,
    )


def _saved(made: Replayer, finding: Finding, edit: Edit) -> tuple[int, int, int]:
    """Return what the edit alone saves, and the ends of its band: what the bill says, if it is replayed."""
    if finding.replayed is not None:
        return finding.saving_ns or 0, finding.saving_low_ns or 0, finding.saving_high_ns or 0
    claimed = finding.toll_ns if finding.saving_ns is None else finding.saving_ns
    beyond_toll = edit.beyond is not None or edit.in_stages
    most = (made.most_ns(edit, 1.0) or 0.0) if beyond_toll else 0.0
    return made.saved([edit]).at_most(round(max(most, claimed or 0)))


def _floor(context: Context, made: Replayer, edits: Sequence[Edit]) -> int | None:
    """Return the step with all edits and every collective whose floor is known at it; None if none is."""
    draft = made.draft(edits)
    nodes = np.flatnonzero(draft.recorded.row >= 0)
    nodes = nodes[draft.duration[nodes] > 0]
    floor = context.collectives["floor_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    least = floor[draft.recorded.row[nodes]]
    known = np.isfinite(least)
    if not known.any():
        return None
    draft.duration[nodes[known]] = np.minimum(draft.duration[nodes[known]], least[known])
    return round(made.lasts_ns(draft))
