"""Which steps of a live run are replayed, and that their step is the report's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.event_graph import Kind
from shardtoll.analyzers.whatif.edits.asked import Asked, asked_edits
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.remedies import BOUND, edit_of
from shardtoll.analyzers.whatif.edits.taken_out import lost_by_step
from shardtoll.analyzers.whatif.replayed import Replayer
from shardtoll.analyzers.whatif.savings import predicted, with_savings
from shardtoll.ledger import Collective, Figure, Finding, Ledger, Remedy, Rows, Stall, Step, analyze, ranked
from shardtoll.ledger.tables.tables import to_table
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step

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


def fetching(*steps_ms: tuple[tuple[int, int, int], ...], survey: bool = False) -> Ledger:
    """A job whose ranks fetch, do other work of the host and compute, for so many ms in each step, before the
    collective of 2 ms that ends it. With `survey` a step before them was surveyed, and they were watched."""
    rows: list[Collective] = []
    steps: list[Step] = []
    stalls: list[Stall] = []
    for number, ranks_ms in enumerate((*steps_ms[:survey], *steps_ms), 0 if survey else 1):
        begin = number * 1000 * MS
        end = begin + (max(map(sum, ranks_ms)) + GATHERED_MS) * MS
        for rank, (fetches, host, computes) in enumerate(ranks_ms):
            arrival = begin + (fetches + host + computes) * MS
            times = {"start_ns": arrival, "issue_ns": arrival}
            lasts = {"duration_ns": end - arrival, "exposed_ns": end - arrival}
            size = len(ranks_ms)
            rows.append(collective(step=number, rank=rank, seq=number, group_size=size, **times, **lasts))
            about = {"compute_ns": computes * MS, "exposed_comm_ns": end - arrival}
            about |= {"idle_ns": (fetches + host) * MS, "duration_ns": end - begin, "start_ns": begin}
            steps.append(step(number, rank, level="survey" if number == 0 else "watch", **about))
            if fetches:
                lost = fetches * MS
                stalls.append(Stall(number, rank, "data", "next", "other", 1, lost, lost, before_ns=0))
    which = ledger(rows, steps=steps, run=run_of(len(steps_ms[0])))
    return replace(which, tables={**which.tables, "stalls": to_table("stalls", stalls)})


def no_batches(context: Context, ranks: tuple[int, ...] = ()) -> tuple[Edit, Edit, Edit | None]:
    """Return the finding's edit, that of the option, and that of late ranks."""
    named = edit_of(context, finding(kind="data-stall", toll_ns=60 * MS, saving_ns=60 * MS, rows=Rows()))
    (ready,) = asked_edits(context, Asked(batch_ready=True))
    late = edit_of(context, finding(kind="straggler", ranks=ranks, rows=Rows()))
    assert named is not None
    return named, ready, late


def own_ms(recorded: Recorded, draft: Draft, kind: Kind) -> list[float]:
    """Return each rank's time of a kind, mean over the steps."""
    nodes = np.flatnonzero(recorded.of_kinds((kind,)))
    sums = np.bincount(recorded.graph.rank[nodes], draft.duration[nodes], len(recorded.ranks))
    return [float(ns) / len(recorded.steps) / MS for ns in sums]


@pytest.mark.parametrize(
    ("late_ms", "peer_ms"),
    [
        ((10, 0, 40), (10, 0, 20)),
        ((60, 0, 20), (10, 0, 20)),
        ((10, 40, 20), (10, 0, 20)),
        ((60, 10, 20), (20, 10, 20)),
    ],
    ids=["computes longer", "fetches longer", "waits for something else", "fetches and waits"],
)
def test_a_late_rank_that_becomes_as_its_peers_still_fetches_as_long_as_they_do(
    late_ms: tuple[int, int, int], peer_ms: tuple[int, int, int]
) -> None:
    which = fetching(*[(peer_ms, peer_ms, peer_ms, late_ms)] * 3)
    context, recorded = context_of(which), recorded_of(which)
    replayer = Replayer(context, recorded)
    named, ready, late = no_batches(context, (3,))
    assert late is not None
    as_peer = replayer.draft([late])
    assert own_ms(recorded, as_peer, Kind.COMPUTE) == pytest.approx([peer_ms[2]] * 4)
    assert own_ms(recorded, as_peer, Kind.HOST) == pytest.approx([peer_ms[0] + peer_ms[1]] * 4)
    for edits in ([late, ready], [ready, late], [late, named], [named, ready, late]):
        draft = replayer.draft(edits)
        assert own_ms(recorded, draft, Kind.COMPUTE) == pytest.approx([peer_ms[2]] * 4)
        assert own_ms(recorded, draft, Kind.HOST) == pytest.approx([peer_ms[1]] * 4)
        (parts,) = {
            (each.compute_ns, each.exposed_comm_ns) for each in replayer.parts(draft.outcome()).values()
        }
        assert parts == (peer_ms[2] * MS, GATHERED_MS * MS)


@pytest.mark.parametrize("survey", [False, True])
def test_a_wait_for_a_batch_is_taken_out_once(survey: bool) -> None:
    which = fetching(*[((20, 5, 40), (20, 5, 40))] * 3, survey=survey)
    context, recorded = context_of(which), recorded_of(which)
    replayer = Replayer(context, recorded)
    named, ready, _ = no_batches(context)
    for edits in ([named], [ready], [named, ready]):
        assert replayer.saved(edits).mid_ns == pytest.approx(20 * MS)


@pytest.mark.parametrize("survey", [False, True])
def test_steps_in_which_nobody_waited_tell_of_no_wait(survey: bool) -> None:
    calm = ((0, 0, 20), (0, 0, 20))
    turns = (calm, ((20, 0, 20), (0, 0, 20)), calm, ((0, 0, 20), (20, 0, 20)))
    which = fetching(*turns, survey=survey)
    context, recorded = context_of(which), recorded_of(which)
    replayer = Replayer(context, recorded)
    _, ready, _ = no_batches(context)
    # On the mean each rank waits for 5 ms, and the steps for 10.
    named = edit_of(context, finding(kind="data-stall", toll_ns=5 * MS, saving_ns=5 * MS, rows=Rows()))
    assert named is not None
    assert replayer.most_ns(named) == pytest.approx(10 * MS)
    for edits in ([named], [ready], [named, ready]):
        assert replayer.saved(edits).mid_ns == pytest.approx(10 * MS)


def test_what_some_steps_tell_of_a_second_forward_says_nothing_of_single_others() -> None:
    which = fetching(*[((20, 5, 40), (20, 5, 40))] * 3, survey=True)
    for steps, told in (((0, 1), {}), ((0,), {})):
        stalls = [Stall(number, 0, "recompute", "", "backward", 1, MS, MS) for number in steps]
        some = replace(which, tables={**which.tables, "stalls": to_table("stalls", stalls)})
        assert lost_by_step(context_of(some), recorded_of(some), "recompute") == told


def again(which: Ledger) -> Ledger:
    """The same job; 30 ms of its compute in each step run the forward again."""
    steps = which.tables["steps"].to_pylist()
    stalls = [
        Stall(row["step"], row["rank"], "recompute", "", "backward", 1, 30 * MS, 30 * MS) for row in steps
    ]
    return replace(which, tables={**which.tables, "stalls": to_table("stalls", stalls)})


def test_on_a_faster_gpu_the_second_forward_takes_less_too() -> None:
    which = again(fetching(*[((0, 20, 40), (0, 20, 40))] * 3))
    context = context_of(which)
    replayer = Replayer(context, recorded_of(which))
    edits = asked_edits(context, Asked(no_recompute=True, gpu=4.0))
    # 10 of 40 ms stay, and take a quarter.
    assert replayer.saved(edits).mid_ns == replayer.saved(edits[::-1]).mid_ns == pytest.approx(37.5 * MS)


def test_second_forwards_of_single_findings_are_parts_of_all_of_them() -> None:
    which = again(fetching(*[((0, 20, 40), (0, 20, 40))] * 3))
    context = context_of(which)
    replayer = Replayer(context, recorded_of(which))
    whole = asked_edits(context, Asked(no_recompute=True))
    parts = [
        edit
        for toll_ns in (10 * MS, 15 * MS)
        if (edit := edit_of(context, finding(kind="recompute", toll_ns=toll_ns, saving_ns=toll_ns)))
    ]
    for edits, saved_ms in ((parts[:1], 10), (parts, 25), (whole, 30), ([*whole, *parts], 30)):
        assert replayer.saved(edits).mid_ns == pytest.approx(saved_ms * MS)


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
    late, ready, _ = no_batches(context)
    late = replace(late, most_ns=10 * MS)
    for edits in ([late], [ready], [late, ready]):
        assert replayer.saved(edits).mid_ns == pytest.approx(20 * MS, rel=0.02)
        # Half of each wait is in what steps are said to compute: it goes from there, once.
        assert own_ms(recorded, replayer.draft(edits), Kind.COMPUTE) == pytest.approx([20 - 10 / 2] * 2)
