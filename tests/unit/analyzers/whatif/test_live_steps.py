"""Which steps of a live run are replayed, and that their step is the report's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.event_graph import Kind
from shardtoll.analyzers.whatif.asked import Asked, asked_edits
from shardtoll.analyzers.whatif.draft import Draft
from shardtoll.analyzers.whatif.remedies import BOUND, edit_of
from shardtoll.analyzers.whatif.replayed import Replayer
from shardtoll.analyzers.whatif.savings import predicted, with_savings
from shardtoll.ledger import Collective, Figure, Finding, Ledger, Remedy, Rows, Stall, Step, analyze, ranked
from shardtoll.ledger.tables.tables import to_table
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


def late_and_slow() -> Ledger:
    """Two ranks that fetch for 10 ms and then compute before one collective: rank 1 for 40 ms, rank 0 for 20.

    Both compute for 8 ms more after it.
    """
    rows: list[Collective] = []
    steps: list[Step] = []
    for number in (1, 2, 3):
        begin = number * 1000 * MS
        for rank, computes in enumerate((20, 40)):
            arrival, end = begin + (10 + computes) * MS, begin + 52 * MS
            times = {"start_ns": arrival, "issue_ns": arrival}
            lasts = {"duration_ns": end - arrival, "exposed_ns": end - arrival}
            rows.append(collective(step=number, rank=rank, seq=number, **times, **lasts))
            about = {"compute_ns": (computes + 8) * MS, "exposed_comm_ns": end - arrival, "idle_ns": 10 * MS}
            steps.append(step(number, rank, start_ns=begin, duration_ns=60 * MS, **about))
    return ledger(rows, steps=steps)


def test_a_late_rank_that_becomes_as_its_peers_still_fetches_as_long_as_they_do() -> None:
    # The late rank computes longer: as fast as its peer it computes less, and its batch takes as long.
    recorded = recorded_of(late_and_slow())
    draft = Draft(recorded)
    draft.ranks_as((1,), {0: (1,), 1: (0,)})
    for kind, of_both_ms in ((Kind.COMPUTE, 28), (Kind.HOST, 10)):
        nodes = np.flatnonzero(recorded.of_kinds((kind,)))
        sums = np.bincount(recorded.graph.rank[nodes], draft.duration[nodes]) / len(recorded.steps)
        assert sums == pytest.approx([of_both_ms * MS] * 2, rel=0.02)
    draft.shorten((Kind.HOST,), 10 * MS, (0, 1), None)
    assert draft.lasts_ns() == pytest.approx((20 + 2 + 8) * MS, rel=0.02)


def in_turn() -> Ledger:
    """Two ranks that compute for 20 ms before the collective that ends a step; in turn they fetch for 20 too.

    How a step divides was seen in others: 10 ms of each are idle.
    """
    rows: list[Collective] = []
    steps: list[Step] = []
    stalls: list[Stall] = []
    for number in (1, 2, 3, 4):
        begin = number * 1000 * MS
        for rank in (0, 1):
            fetched = 20 if number % 2 == rank else 0
            arrival, end = begin + (fetched + 20) * MS, begin + 42 * MS
            times = {"start_ns": arrival, "issue_ns": arrival}
            lasts = {"duration_ns": end - arrival, "exposed_ns": end - arrival}
            rows.append(collective(step=number, rank=rank, seq=number, **times, **lasts))
            about = {"compute_ns": (10 + fetched) * MS, "exposed_comm_ns": end - arrival, "idle_ns": 10 * MS}
            steps.append(step(number, rank, start_ns=begin, duration_ns=42 * MS, **about))
            if fetched:
                stalls.append(Stall(number, rank, "data", "next", "other", 1, 20 * MS, 20 * MS))
    which = ledger(rows, steps=steps)
    return replace(which, tables={**which.tables, "stalls": to_table("stalls", stalls)})


def test_ranks_that_wait_for_batches_in_turn_hold_up_every_step() -> None:
    which = in_turn()
    context, recorded = context_of(which), recorded_of(which)
    replayer = Replayer(context, recorded)
    # On the mean each rank waits for 10 ms, and no step waits for less than 20.
    late = finding(kind="data-stall", toll_ns=10 * MS, saving_ns=10 * MS, rows=Rows())
    for edit in (edit_of(context, late), *asked_edits(context, Asked(batch_ready=True))):
        assert edit is not None
        assert replayer.saved([edit]).mid_ns == pytest.approx(20 * MS, rel=0.02)
