"""The step that replay predicts for a change, as the median over steps.

A busy machine makes some steps twice as long, and which run has them is chance. `report.whatif` answers for
the mean step, as a report does. Here each recorded step is replayed with the change and the median of those
is the prediction; the band is that of `report.whatif`, as wide around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.context.context import Context, make_context
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.outcome import Outcome
from shardtoll.analyzers.roofline import choose_fabric, with_device
from shardtoll.analyzers.whatif.edits.asked import Asked, asked_edits
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.remedies import edit_of
from shardtoll.analyzers.whatif.replayed import Replayer
from shardtoll.ledger import Ledger, Report

MS: Final = 1e6


def step_ms(ledger: Ledger) -> float:
    """Return the median over the timed steps of the slowest rank's step, without capture's own work."""
    rows = context_of(ledger).timed_rows
    own = rows["duration_ns"] - rows["capture_ns"]
    return float(own.groupby(rows["step"]).max().median()) / MS


def step_spread(ledger: Ledger) -> float:
    """Return half the range of the middle half of those steps, as a share of their median."""
    rows = context_of(ledger).timed_rows
    slowest = (rows["duration_ns"] - rows["capture_ns"]).groupby(rows["step"]).max()
    low, mid, high = (float(slowest.quantile(share)) for share in (0.25, 0.5, 0.75))
    return (high - low) / 2 / mid


def predicted(
    report: Report, fixes: Sequence[int], asked: Mapping[str, Any], median_ms: float
) -> dict[str, Any]:
    """Return step and band after the change, in ms, where the median step before is `median_ms`."""
    answer = report.whatif(*fixes, **asked)
    ledger = Ledger(with_device(report.run), report.groups, report.tables)
    context = make_context(ledger, choose_fabric(ledger.run))
    recorded = recorded_graph(context)
    assert recorded is not None, "whatif has just replayed it"
    made = Replayer(context, recorded)
    draft = made.draft(_edits(context, report, fixes, asked))
    before = _median_ms(recorded, made.outcome)
    after = _median_ms(recorded, draft.outcome()) * draft.step_factor
    # Both start from the measured median: steps on record may be some of the timed ones.
    predicted_ms = median_ms - (before - after)
    saved, per_ms = answer.saving_ns, median_ms / answer.before.step_ns
    return {
        "before_ms": median_ms,
        "predicted_ms": predicted_ms,
        "low_ms": max(0.0, predicted_ms - per_ms * (answer.saving_high_ns - saved)),
        "high_ms": predicted_ms + per_ms * (saved - answer.saving_low_ns),
        "replay_error": answer.replay_error,
    }


def _edits(context: Context, report: Report, fixes: Sequence[int], asked: Mapping[str, Any]) -> list[Edit]:
    made = [edit_of(context, report.findings[number - 1], number) for number in fixes]
    return [*(edit for edit in made if edit is not None), *asked_edits(context, Asked(**asked))]


def _median_ms(recorded: Recorded, outcome: Outcome) -> float:
    by_step: dict[int, float] = {}
    for (step, _), time in recorded.step_times(outcome).items():
        by_step[step] = max(by_step.get(step, 0.0), time)
    return float(np.median(list(by_step.values()))) / MS
