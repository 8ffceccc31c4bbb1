"""Which steps of a live run are replayed, and that their step is the report's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.whatif.draft import Draft
from shardtoll.analyzers.whatif.remedies import BOUND, edit_of
from shardtoll.analyzers.whatif.replayed import Replayer
from shardtoll.analyzers.whatif.savings import predicted, with_savings
from shardtoll.ledger import Collective, Figure, Finding, Ledger, Remedy, Rows, Step, analyze, ranked
from tests.unit.analyzers.ledgers import MS, collective, ledger, step

OWN_MS = (10, 20)
"""Before the collective, by rank; after it 8 ms on both."""
GATHERED_MS = 2


def made(watched: Iterable[int] = (1, 2, 3), capture_ms: int = 10, op: str = "all_gather") -> Ledger:
    """A job of two ranks; step 0 is surveyed: times are doubled, and capture's own work is on top."""
    rows: list[Collective] = []
    steps: list[Step] = []
    for number in (0, *watched):
        times, extra = (2, capture_ms * MS) if number == 0 else (1, 0)
        begin = number * 1000 * MS
        end = begin + times * (max(OWN_MS) + GATHERED_MS) * MS
        for rank, own in enumerate(OWN_MS):
            start = begin + times * own * MS
            rows.append(
                collective(
                    step=number,
                    rank=rank,
                    seq=number + 1,
                    op=op,
                    source="t.py:1 (f)",
                    start_ns=start,
                    issue_ns=start,
                    duration_ns=end - start,
                    exposed_ns=end - start,
                )
            )
            lasts = end - begin + times * 8 * MS + extra
            steps.append(
                step(
                    number,
                    rank,
                    start_ns=begin,
                    duration_ns=lasts,
                    exposed_comm_ns=end - start,
                    compute_ns=lasts - extra - (end - start),
                    idle_ns=0,
                    unattributed_ns=extra,
                    capture_ns=extra,
                    level="survey" if number == 0 else "watch",
                )
            )
    return ledger(rows, steps=steps)


def recorded_of(which: Ledger) -> Recorded:
    recorded = recorded_graph(context_of(which))
    assert recorded is not None
    return recorded


def test_watched_steps_are_replayed_and_their_step_is_the_reports() -> None:
    report = analyze(made())
    answer = report.whatif(without=("all_gather",))
    assert answer.steps == (1, 2, 3)
    assert answer.before.step_ns == context_of(made()).step_ns == 30 * MS
    # The late rank's own time is all that is left.
    assert answer.after.step_ns == 28 * MS
    assert answer.saving_ns == 2 * MS
    for parts in (answer.before, answer.after):
        whole = parts.compute_ns + parts.exposed_comm_ns + parts.exposed_copy_ns + parts.rest_ns
        assert whole == parts.step_ns


def test_rows_of_a_surveyed_step_say_which_calls_of_watched_steps_are_meant() -> None:
    recorded = recorded_of(made())
    nodes = Draft(recorded).nodes_of(np.array([0, 1], dtype=np.int64))
    assert sorted(recorded.step[nodes].tolist()) == [1, 1, 2, 2, 3, 3]
    own = np.flatnonzero(np.isin(recorded.step[nodes], [2]))
    rows = recorded.row[nodes[own]]
    assert Draft(recorded).nodes_of(rows).tolist() == nodes[own].tolist()


def test_only_surveyed_a_step_is_replayed_without_what_recording_it_took() -> None:
    which = made(watched=())
    context, recorded = context_of(which), recorded_of(which)
    unedited = recorded.step_times(recorded.replay())
    assert unedited == pytest.approx({(0, 0): 70 * MS, (0, 1): 70 * MS})
    replayer = Replayer(context, recorded)
    assert replayer.step_ns == pytest.approx(context.step_ns) == pytest.approx(60 * MS)
    assert Draft(recorded).lasts_ns() < 65 * MS
    assert replayer.doubt.replay_error == pytest.approx(0, abs=1e-9)


def finding(**given: object) -> Finding:
    mask = np.array([True, True] + [False] * 6)
    values = {
        "kind": "needless-barrier",
        "severity": "warning",
        "title": "t",
        "toll_ns": 12 * MS,
        "floor_ns": None,
        "saving_ns": 12 * MS,
        "bytes": None,
        "count": 1,
        "ranks": (0, 1),
        "rows": Rows.of(collectives=mask),
        "remedy": Remedy("do"),
    }
    return Finding(**{**values, **given})  # type: ignore[arg-type]


def test_a_live_runs_bill_keeps_its_bounds() -> None:
    context, recorded = context_of(made()), recorded_of(made())
    late = finding(kind="straggler", ranks=(1,))
    assert predicted(Replayer(context, recorded), context, late) == late
    assert with_savings(context, (finding(), late)) == (finding(), late)


def test_of_a_replayed_saving_the_same_edit_is_made_as_before() -> None:
    context, recorded = context_of(made()), recorded_of(made())
    half = finding(saving_ns=6 * MS)
    bound = Figure(BOUND, 6 * MS, "ns")
    told = replace(half, saving_ns=MS, replayed="these", figures=(bound,))
    one, other = edit_of(context, half), edit_of(context, told)
    assert one is not None
    assert other is not None
    assert one.label == other.label == "these collectives in 50% of their time"
    replayer = Replayer(context, recorded)
    assert replayer.saved([one]) == replayer.saved([other])


def test_the_bill_ranks_by_what_fixing_saves() -> None:
    replayed = finding(saving_ns=2 * MS, replayed="without these collectives")
    bound = finding(kind="latency-bound", toll_ns=5 * MS, saving_ns=5 * MS)
    error = replace(bound, severity="error", toll_ns=MS, saving_ns=MS)
    assert ranked((replayed, bound, error)) == (error, bound, replayed)
