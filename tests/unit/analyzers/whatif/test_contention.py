"""What communication costs the compute that it is moved under, and that the answer says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.remedies import edit_of
from shardtoll.analyzers.whatif.edits.under_compute import slow_down
from shardtoll.analyzers.whatif.path import critical_path
from shardtoll.analyzers.whatif.replayed import Replayer
from shardtoll.ledger import Finding, Remedy, Rows
from tests.unit.analyzers.made_jobs import Meet, Own, job

MS = 1_000_000
COMPUTE_MS, MOVE_MS = (20, 30), 10


def moved(**run: Any) -> tuple[Replayer, Edit, Edit]:
    """Return a job of 20 ms compute, an all_reduce of 10 ms and 30 ms compute; the edit that moves the
    all_reduce under the compute after it; and one that removes it."""
    program = [Own(COMPUTE_MS[0] * MS), Meet("all", ns=MOVE_MS * MS), Own(COMPUTE_MS[1] * MS)]
    made = job({0: program, 1: program}, {"all": (0, 1)}, **run)
    context = context_of(made)
    recorded = recorded_graph(context)
    assert recorded is not None
    finding = Finding(
        kind="exposed-communication",
        severity="warning",
        title="t",
        toll_ns=MOVE_MS * MS,
        floor_ns=None,
        saving_ns=MOVE_MS * MS,
        bytes=None,
        count=1,
        ranks=(0, 1),
        rows=Rows.of(collectives=np.arange(len(context.collectives))),
        remedy=Remedy("do"),
    )
    edits = [edit_of(context, replace(finding, kind=kind)) for kind in (finding.kind, "needless-barrier")]
    assert edits[0] is not None
    assert edits[1] is not None
    return Replayer(context, recorded), edits[0], edits[1]


def test_communication_under_compute_slows_it_by_the_stated_share_of_the_overlap() -> None:
    made, under, _ = moved()
    saved = made.saved([under])
    assert made.step_ns == 60 * MS
    # 10 ms overlap: each takes 0.21 of that longer; none of it and twice as much are the ends.
    assert saved.mid_ns == pytest.approx((10 - 0.21 * 10) * MS)
    assert saved.low_ns <= (10 - 2 * 0.21 * 10) * MS
    assert saved.high_ns >= 10 * MS
    assert under.note is not None
    assert "0.21 of the time in which they overlap" in under.note
    assert "A100 and H100" in under.note


def test_on_a_cpu_no_factor_is_known_and_none_is_applied() -> None:
    made, under, _ = moved(device="cpu", backend="gloo")
    assert made.saved([under]).mid_ns == pytest.approx(10 * MS)
    assert under.note is not None
    assert "On CPUs the cost" in under.note


def test_what_is_removed_overlaps_nothing() -> None:
    made, under, removed = moved()
    assert made.saved([under, removed]).mid_ns == pytest.approx(10 * MS)
    assert made.saved([removed, under]).mid_ns == pytest.approx(10 * MS)
    assert removed.note is None


def test_memory_does_not_grow_with_the_number_of_the_step() -> None:
    recorded = moved()[0].recorded
    far = replace(recorded, step=np.where(recorded.step >= 0, recorded.step + 10**12, recorded.step))
    lags, durations = [], []
    for steps in (recorded, far):
        draft = Draft(steps)
        draft.let_go(np.flatnonzero(steps.row >= 0))
        slow_down(draft, np.ones(len(steps.graph)), 0.5)
        lags.append(draft.lag)
        durations.append(draft.duration)
    np.testing.assert_array_equal(*lags)
    np.testing.assert_array_equal(*durations)
    assert np.isneginf(lags[0]).any()


def test_what_a_finding_does_not_save_is_no_compute() -> None:
    made, _, removed = moved()
    draft, after, step_ns = made.simulated([replace(removed, most_ns=4 * MS)])
    assert step_ns == pytest.approx(56 * MS)
    parts = made.parts(after, draft)[0]
    # The replay without the collective takes 50 ms, all of them compute.
    assert (parts.step_ns, parts.compute_ns, parts.rest_ns) == (56 * MS, 50 * MS, 6 * MS)
    path = critical_path(made.recorded, after, 0, step_ns, step_factor=draft.step_factor)
    assert [(part.what, part.ns) for part in path.parts] == [("compute", 50 * MS), ("gap", 6 * MS)]
    assert sum(part.share for part in path.parts) == pytest.approx(1)
