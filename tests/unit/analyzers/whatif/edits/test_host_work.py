"""What removing calls saves of the host's work for them, on made steps whose times are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.whatif.doubt import doubt
from shardtoll.analyzers.whatif.edits.asked import Asked, asked_edits
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.host_work import host_work
from shardtoll.analyzers.whatif.edits.remedies import edit_of
from shardtoll.analyzers.whatif.edits.removal import joined
from shardtoll.analyzers.whatif.replayed import Replayer, Saved
from shardtoll.ledger import Finding, Ledger, Remedy, Rows, Run
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step

BEFORE_MS, GAP_MS, AFTER_MS, CALL_MS = 10, 2, 10, 1
NOISE = 0.005
"""Of a step: by how much runs of one program differ."""


def calls(
    lines: Sequence[int] = (1, 1, 1, 1),
    asleep_ms: int | None = -1,
    compute: bool = False,
    exposed_ns: int = CALL_MS * MS,
    **given: object,
) -> Ledger:
    """Two ranks issue all_reduces at these lines, 2 ms of own time between; three watched steps, all alike.

    `asleep_ms`: how long a rank slept; -1 as long as it was blocked. `compute`: own time is in operators.
    """
    rows, steps = [], []
    lasts = BEFORE_MS + AFTER_MS + len(lines) * CALL_MS + (len(lines) - 1) * GAP_MS
    for number in range(3):
        for rank in (0, 1):
            at = number * 1000 * MS + BEFORE_MS * MS
            for place, line in enumerate(lines):
                values = {
                    "source": f"t.py:{line} (f)",
                    "caused_by_op": "DTensor.redistribute",
                    "message_bytes": 4,
                    "phase": "optimizer",
                } | given
                rows.append(
                    collective(
                        step=number,
                        rank=rank,
                        seq=number * len(lines) + place,
                        issue_ns=at,
                        start_ns=at,
                        duration_ns=CALL_MS * MS,
                        exposed_ns=exposed_ns,
                        **values,
                    )
                )
                at += (CALL_MS + GAP_MS) * MS
            blocked = len(lines) * exposed_ns
            own = lasts * MS - blocked
            slept = None if asleep_ms is None else blocked if asleep_ms < 0 else asleep_ms * MS
            steps.append(
                step(
                    number,
                    rank,
                    start_ns=number * 1000 * MS,
                    duration_ns=lasts * MS,
                    exposed_comm_ns=blocked,
                    compute_ns=own if compute else 0,
                    idle_ns=0 if compute else own,
                    asleep_ns=slept,
                )
            )
    return ledger(rows, steps=steps)


def replayer(which: Ledger) -> Replayer:
    context = context_of(which)
    recorded = recorded_graph(context)
    assert recorded is not None
    return Replayer(context, recorded)


def without(which: Ledger, words: str) -> Saved:
    made = replayer(which)
    return made.saved(asked_edits(made.context, Asked(without=(words,))))


def test_the_host_works_between_calls_of_one_place_for_those_calls() -> None:
    saved = without(calls(), "@t.py:1")
    noise = NOISE * 30 * MS
    # 4 calls, what lies between them, and half of as much again for what comes before the first.
    assert saved.mid_ns == pytest.approx((4 + 6 + 1) * MS)
    assert saved.low_ns == pytest.approx((4 + 3) * MS - noise)
    assert saved.high_ns == pytest.approx((4 + 6 + 2) * MS + noise)


def test_other_calls_in_between_leave_only_what_one_call_costs_at_most() -> None:
    saved = without(calls((1, 2, 1, 2)), "@t.py:1")
    # 2 calls. Before each the host works 2 ms at most, as between any two: a half is expected.
    assert saved.mid_ns == pytest.approx((2 + 2) * MS)
    assert saved.low_ns == pytest.approx(2 * MS - NOISE * 30 * MS)
    assert saved.high_ns == pytest.approx((2 + 4) * MS + NOISE * 30 * MS)


def test_a_call_whose_like_never_follows_it_is_open_within_the_hosts_time_around_it() -> None:
    saved = without(calls((1,)), "@t.py:1")
    assert saved.mid_ns == pytest.approx(MS)
    assert saved.low_ns == pytest.approx(MS - NOISE * 21 * MS)
    assert saved.high_ns == pytest.approx(21 * MS)


@pytest.mark.parametrize("asleep_ms", [30, None])
def test_a_sleep_is_no_work_of_a_call_and_what_is_not_known_is_none(asleep_ms: int | None) -> None:
    saved = without(calls(asleep_ms=asleep_ms), "@t.py:1")
    assert saved.mid_ns == pytest.approx(4 * MS)
    assert saved.high_ns == pytest.approx(4 * MS + NOISE * 30 * MS)


def test_half_awake_a_host_worked_half_of_that_time() -> None:
    saved = without(calls(asleep_ms=4 + 13), "@t.py:1")
    assert saved.mid_ns == pytest.approx((4 + 3 + 0.5) * MS)


def test_from_one_pass_to_the_next_lies_more_than_the_work_for_a_call() -> None:
    """Four micro-batches: between two backward passes lies a forward, and fetching its batch."""
    saved = without(calls(phase="backward"), "@t.py:1")
    # As of calls that stand alone: a half of the shortest time between two of them, for each of the four.
    assert saved.mid_ns == pytest.approx((4 + 4) * MS)
    assert saved.high_ns == pytest.approx((4 + 8) * MS + NOISE * 30 * MS)


def test_one_long_time_between_two_calls_holds_other_work_too() -> None:
    which = calls((1,) * 12)
    rows = which.tables["collectives"].to_pylist()
    steps = which.tables["steps"].to_pylist()
    for row in rows:
        if row["seq"] % 12 >= 6:
            row["issue_ns"] += 50 * MS
            row["start_ns"] += 50 * MS
    for row in steps:
        row["duration_ns"] += 50 * MS
        row["idle_ns"] += 50 * MS
    tables = {
        **which.tables,
        "collectives": pa.Table.from_pylist(rows, schema=which.tables["collectives"].schema),
        "steps": pa.Table.from_pylist(steps, schema=which.tables["steps"].schema),
    }
    saved = without(replace(which, tables=tables), "@t.py:1")
    # 12 calls, 11 times 2 ms between them, and half of 2 ms before the first. The 50 ms stay.
    assert saved.mid_ns == pytest.approx((12 + 22 + 1) * MS)


def test_what_lies_between_calls_as_a_rule_is_not_the_shortest_of_it() -> None:
    which = calls((1,) * 12)
    rows = which.tables["collectives"].to_pylist()
    for row in rows:
        # Each of the first three of eleven times between two calls is 1.5 ms shorter.
        sooner = min(row["seq"] % 12, 3) * 3 * MS // 2
        row["issue_ns"] -= sooner
        row["start_ns"] -= sooner
    collectives = pa.Table.from_pylist(rows, schema=which.tables["collectives"].schema)
    saved = without(replace(which, tables={**which.tables, "collectives": collectives}), "@t.py:1")
    # 12 calls, what lies between them, and half of the shortest time before the first.
    assert saved.mid_ns == pytest.approx((12 + 3 * 0.5 + 8 * 2 + 0.25) * MS)


def test_of_steps_that_nothing_divides_no_work_of_the_host_is_known() -> None:
    which = calls()
    steps = which.tables["steps"].to_pylist()
    for row in steps:
        row["unattributed_ns"], row["idle_ns"] = row["idle_ns"], 0
    watched = pa.Table.from_pylist(steps, schema=which.tables["steps"].schema)
    saved = without(replace(which, tables={**which.tables, "steps": watched}), "@t.py:1")
    assert saved.mid_ns == pytest.approx(4 * MS)


def test_work_that_two_fixes_take_out_is_gone_once() -> None:
    which = calls()
    made = replayer(which)
    one, same = fix(which), fix(which)
    assert made.after_ns([one, same]) == pytest.approx(made.after_ns([one]))
    assert made.after_ns([one]) == pytest.approx((30 - 11) * MS)


def test_operators_are_no_work_of_a_call() -> None:
    assert without(calls(compute=True), "@t.py:1").mid_ns == pytest.approx(4 * MS)


def finding(which: Ledger, **given: object) -> Finding:
    rows = np.arange(which.tables["collectives"].num_rows)
    values = {
        "kind": "implicit-redistribute",
        "severity": "warning",
        "title": "t",
        "toll_ns": 4 * MS,
        "floor_ns": None,
        "saving_ns": 4 * MS,
        "bytes": None,
        "count": 4,
        "ranks": (0, 1),
        "rows": Rows.of(collectives=rows),
        "remedy": Remedy("do"),
    }
    return Finding(**{**values, **given})  # type: ignore[arg-type]


def fix(which: Ledger, **given: object) -> Edit:
    edit = edit_of(context_of(which), finding(which, **given))
    assert edit is not None
    return edit


def test_a_fix_saves_its_toll_and_the_hosts_work_at_most() -> None:
    which = calls()
    made = replayer(which)
    assert made.saved([fix(which)]).mid_ns == pytest.approx((4 + 6 + 1) * MS)
    half = fix(which, toll_ns=2 * MS, saving_ns=2 * MS)
    assert made.most_ns(half) == pytest.approx((2 + 6 + 1) * MS)
    assert made.saved([half]).mid_ns == pytest.approx((2 + 6 + 1) * MS)


def test_a_call_that_stays_keeps_the_hosts_work() -> None:
    which = calls()
    saved = replayer(which).saved([fix(which, kind="wide-dtype", saving_ns=2 * MS)])
    assert saved.mid_ns == pytest.approx(2 * MS)


def test_chance_makes_the_changed_run_shorter_too_whatever_its_fix_saves_at_most() -> None:
    which = calls(asleep_ms=None)
    saved = replayer(which).saved([fix(which)])
    assert saved.mid_ns == pytest.approx(4 * MS)
    assert saved.high_ns - saved.mid_ns == pytest.approx(NOISE * 30 * MS)


def test_a_gather_for_logging_is_done_seldom_and_not_hidden() -> None:
    which = calls(op="all_gather", phase="other", caused_by_op="DTensor.full_tensor")
    edit = fix(which, kind="exposed-communication")
    assert edit.label == "without these exchanges, but for one step in many"
    assert replayer(which).saved([edit]).mid_ns == pytest.approx((4 + 6 + 1) * MS)
    objects = calls(op="all_gather", phase="forward", caused_by_op="all_gather_object")
    assert fix(objects, kind="exposed-communication").label == edit.label
    hidden = fix(calls(op="all_gather", phase="forward"), kind="exposed-communication")
    assert hidden.label == "nobody waits for these collectives"


def test_one_message_in_place_of_a_burst_spares_the_meetings_and_the_host() -> None:
    lines = (1,) * 40
    which = calls(lines)
    lasts = 10 + 40 + 39 * 2 + 10
    context = context_of(which)
    edit = joined(context, np.arange(which.tables["collectives"].num_rows), "one")
    made = Replayer(context, recorded := recorded_graph(context))  # type: ignore[arg-type]
    assert recorded is not None
    after = made.after_ns([edit])
    # 39 calls and what lies between are gone; the last stays, with the data of all.
    assert after >= (10 + 1 + 10 - 1) * MS
    assert after < (lasts - 39 - 78 + 39 * 0.01) * MS


def test_reads_of_values_are_operators() -> None:
    which = calls(compute=True)
    edit = fix(which, kind="host-sync", toll_ns=13 * MS, saving_ns=13 * MS, rows=Rows())
    assert replayer(which).saved([edit]).mid_ns == pytest.approx(13 * MS)


def test_how_fast_traffic_is_inside_a_node_is_not_known_without_a_saving() -> None:
    which = calls()
    context = context_of(which)
    unknown = finding(which, kind="cross-node-traffic", saving_ns=None)
    assert edit_of(context, unknown) is None
    halved = fix(which, kind="cross-node-traffic", saving_ns=2 * MS)
    assert halved.label == "these collectives in 50% of their time"


def shared(ranks: int, cores: int, asleep_ms: int | None) -> float:
    """Return the crowding of ranks that slept so much of 100 ms."""
    run: Run = replace(run_of(ranks), cores=cores)
    steps = [
        step(number, rank, asleep_ns=None if asleep_ms is None else asleep_ms * MS)
        for number in range(3)
        for rank in range(ranks)
    ]
    rows = [
        collective(step=number, rank=rank, seq=number, group_size=ranks)
        for number in range(3)
        for rank in range(ranks)
    ]
    context = context_of(ledger(rows, run=run, steps=steps))
    recorded = recorded_graph(context)
    assert recorded is not None
    return doubt(context, recorded, recorded.replay(), 0.0).crowding


def test_ranks_that_share_cores_may_free_each_other_while_they_are_awake() -> None:
    assert shared(4, 2, 0) == pytest.approx(1.0)
    assert shared(4, 2, 75) == pytest.approx(0.25)
    assert shared(4, 2, None) == pytest.approx(1.0)
    assert shared(2, 2, 0) == 0.0


def test_the_message_that_stays_keeps_the_hosts_work_inside_of_it() -> None:
    # The host works half of each call itself.
    which = calls((1,) * 4, asleep_ms=0, exposed_ns=MS // 2)
    context = context_of(which)
    recorded = recorded_graph(context)
    assert recorded is not None
    nodes = Draft(recorded).nodes_of(np.arange(which.tables["collectives"].num_rows))
    at = recorded.start_ns[nodes]
    last = nodes[
        [np.max(at[same]) == each for each, same in zip(at, _same_rank_steps(recorded, nodes), strict=True)]
    ]
    assert len(last) == 3 * 2
    gone, stays = (host_work(context, recorded, nodes, kept).saves_ns(recorded, 1.0) for kept in (None, last))
    assert gone - stays == pytest.approx(MS // 2)


def _same_rank_steps(recorded: Recorded, nodes: npt.NDArray[np.int64]) -> list[npt.NDArray[np.bool_]]:
    """Return for each node which others are of its rank and step."""
    rank, step_of = recorded.graph.rank[nodes], recorded.step[nodes]
    return [(rank == r) & (step_of == s) for r, s in zip(rank, step_of, strict=True)]
