"""Which records are one collective, and what follows for waiting, transfer and bus bandwidth."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.analyzers.context.match import match
from shardtoll.analyzers.roofline import Placement, collective_cost, load_fabric
from shardtoll.ledger import Group
from shardtoll.ledger.tables.tables import to_records
from tests.unit.analyzers.ledgers import MS, US, collective, ledger, on_ranks, run_of, step
from tests.unit.analyzers.of_kinds import running


def matched(rows, **given_values):
    book = ledger(rows, **given_values)
    ids = match(book, book.frame("collectives")).rows["match_id"]
    return [None if value is None else int(value) for value in ids.astype(object).where(ids.notna(), None)]


def filled(rows, **given_values):
    report = running()(ledger(rows, **given_values))
    return to_records("collectives", report.tables["collectives"])


def kinds(rows, **given_values):
    of_trust = running("clock-skew", "incomplete-input", "unmatched-collectives")
    return [finding.kind for finding in of_trust(ledger(rows, **given_values)).findings]


def test_the_last_arrival_splits_waiting_from_transfer():
    first, last = filled(
        [
            collective(rank=0, start_ns=1 * MS, duration_ns=10 * MS),
            collective(rank=1, start_ns=7 * MS, duration_ns=5 * MS),
        ]
    )
    assert (first.wait_ns, first.transfer_ns) == (6 * MS, 4 * MS)
    assert (last.wait_ns, last.transfer_ns) == (0, 5 * MS)
    # all_reduce of 2 ranks: factor 1; 1 MiB in 4 ms.
    assert first.busbw_gbps == pytest.approx((1 << 20) / (4 * MS))


def test_busbw_takes_nccl_tests_factor():
    rows = filled(on_ranks(range(4), group_size=4, op="all_gather"), run=run_of(4))
    assert rows[0].busbw_gbps == pytest.approx((1 << 20) / (2 * MS) * 3 / 4)


@settings(deadline=None, max_examples=20)
@given(
    starts=st.lists(st.integers(0, 10_000), min_size=2, max_size=5),
    rest=st.integers(1, 10_000),
)
def test_wait_and_transfer_add_up_to_the_span(starts, rest):
    end = max(starts) + rest
    ranks = len(starts)
    rows = filled(
        [
            collective(rank=rank, start_ns=start, duration_ns=end - start, group_size=ranks)
            for rank, start in enumerate(starts)
        ],
        run=run_of(ranks),
    )
    for row, start in zip(rows, starts, strict=True):
        assert row.wait_ns == max(starts) - start
        assert row.transfer_ns == rest


@pytest.mark.parametrize(
    "other",
    [{"op": "all_gather"}, {"message_bytes": 4}, {"seq": 2}, {"message_bytes": None}],
    ids=["op", "size", "seq", "unknown size"],
)
def test_records_that_differ_are_not_one(other):
    rows = [collective(rank=0), collective(rank=1, **other)]
    assert matched(rows) == [None, None]
    assert [row.wait_ns for row in filled(rows)] == [None, None]


def test_dtype_phase_and_cause_may_differ():
    ids = matched([collective(rank=0, phase="forward", module="a"), collective(rank=1, dtype="int8")])
    assert ids[0] is not None
    assert ids[0] == ids[1]


def test_sub_groups_that_share_a_name_are_kept_apart():
    groups = (Group("tp", (0, 1), "tp"), Group("tp", (2, 3), "tp"))
    rows = [collective(rank=rank, group="tp", group_size=2) for rank in range(4)]
    ids = matched(rows, run=run_of(4), groups=groups)
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert None not in ids
    late = [collective(rank=r, group="tp", start_ns=r * MS, duration_ns=9 * MS) for r in range(4)]
    assert [row.wait_ns for row in filled(late, run=run_of(4), groups=groups)] == [1 * MS, 0, 1 * MS, 0]


def test_groups_of_one_name_that_overlap_are_told_by_size():
    groups = (Group("g", (0, 1)), Group("g", (0, 1, 2, 3)))
    pair = on_ranks((0, 1), group="g", group_size=2)
    world = on_ranks(range(4), group="g", group_size=4)
    ids = matched([*pair, *world], run=run_of(4), groups=groups)
    assert ids[0] == ids[1] != ids[2]
    assert ids[2] == ids[3] == ids[4] == ids[5]


def test_a_group_never_described_is_known_only_when_it_is_the_world():
    assert None not in matched(on_ranks((0, 1)), groups=())
    assert matched(on_ranks((0, 1)), groups=(), run=run_of(4)) == [None, None]


def test_with_a_rank_missing_waiting_is_unknown():
    rows = on_ranks((0, 1), group_size=4)
    book = run_of(4, ranks_seen=(0, 1))
    ids = matched(rows, run=book)
    assert ids[0] == ids[1] is not None
    assert [(row.wait_ns, row.transfer_ns, row.busbw_gbps) for row in filled(rows, run=book)] == [
        (None, None, None)
    ] * 2


@pytest.mark.parametrize("unknown", [{"start_ns": None}, {"duration_ns": None}])
def test_with_a_time_missing_waiting_is_unknown_on_every_rank(unknown):
    rows = filled([collective(rank=0), collective(rank=1, **unknown)])
    assert [(row.wait_ns, row.transfer_ns) for row in rows] == [(None, None)] * 2


def test_without_sequence_numbers_the_order_within_the_step_counts():
    rows = [collective(rank=rank, seq=None, message_bytes=size) for rank in (0, 1) for size in (8, 16, 8)]
    ids = matched(rows)
    assert ids[:3] == ids[3:]
    assert len(set(ids)) == 3


def test_order_counts_only_where_every_rank_has_as_many():
    rows = [collective(rank=0, seq=None), collective(rank=0, seq=None), collective(rank=1, seq=None)]
    assert matched(rows) == [None, None, None]


def test_order_says_nothing_outside_steps():
    assert matched(on_ranks((0, 1), seq=None, step=None)) == [None, None]
    assert None not in matched(on_ranks((0, 1), seq=5, step=None))


def test_sends_take_numbers_on_two_ranks_only():
    # Rank 0 sends to rank 1 first: its all_reduce is number 2, that of rank 2 is number 1.
    rows = [
        collective(rank=0, seq=1, op="send", root=1, group_size=3),
        collective(rank=1, seq=1, op="recv", root=0, group_size=3),
        collective(rank=0, seq=2, group_size=3),
        collective(rank=1, seq=2, group_size=3),
        collective(rank=2, seq=1, group_size=3),
    ]
    ids = matched(rows, run=run_of(3))
    assert ids[0] == ids[1] is not None, "both ends of one message"
    assert ids[2] == ids[3] == ids[4] is not None
    assert ids[0] != ids[2]
    assert "unmatched-collectives" not in kinds(rows, run=run_of(3))


def shifted(**changed):
    """Two ranks with two all_reduces each, which the first one counts from 10 and the other from 13."""
    numbers = [(0, 10), (0, 11), (1, 13), (1, 14)]
    return [collective(rank=rank, seq=seq, start_ns=seq % 2 * MS, **changed) for rank, seq in numbers]


def test_ranks_whose_numbers_are_a_constant_apart_are_matched_by_order():
    ids = matched(shifted())
    assert ids[:2] == ids[2:]
    assert None not in ids
    assert "unmatched-collectives" not in kinds(shifted())


def test_in_a_trace_numbers_that_are_apart_are_different_collectives():
    assert matched(shifted(), run=run_of(2, source="trace")) == [None] * 4


def test_a_missing_record_is_not_made_up_for_by_a_shift():
    assert "unmatched-collectives" in kinds(shifted()[:3])
    other = shifted()[:3] + shifted(op="broadcast")[3:]
    assert "unmatched-collectives" in kinds(other)


def test_coalesced_records_share_a_number():
    rows = [collective(rank=rank, message_bytes=size) for rank in (0, 1) for size in (8, 16)]
    ids = matched(rows)
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]


def test_barriers_need_no_size():
    ids = matched([collective(rank=0, op="barrier", message_bytes=None), collective(rank=1, op="barrier")])
    assert ids[0] == ids[1] is not None


def test_uneven_all_to_all_is_matched_by_its_number_and_by_order_is_no_mistake():
    rows = [collective(rank=0, op="all_to_all"), collective(rank=1, op="all_to_all", message_bytes=8)]
    ids = matched(rows)
    assert ids[0] == ids[1] is not None
    assert "unmatched-collectives" not in kinds(rows)
    rows = [
        collective(rank=0, op="all_to_all", seq=None),
        collective(rank=1, op="all_to_all", seq=None, message_bytes=8),
    ]
    assert matched(rows) == [None, None]
    assert "unmatched-collectives" not in kinds(rows)


def test_uneven_all_to_all_has_the_bandwidth_of_each_ranks_own_bytes():
    rows = filled(
        [
            collective(rank=0, op="all_to_all", message_bytes=4 << 20, start_ns=0, duration_ns=4 * MS),
            collective(rank=1, op="all_to_all", start_ns=2 * MS, duration_ns=2 * MS),
        ]
    )
    assert [(row.wait_ns, row.transfer_ns) for row in rows] == [(2 * MS, 2 * MS), (0, 2 * MS)]
    assert rows[0].busbw_gbps == pytest.approx(4 * rows[1].busbw_gbps)


def test_order_is_that_of_asking_where_streams_begin_in_another():
    # Both ranks ask for A, then B; on rank 1 stream 21 begins first.
    rows = [
        collective(
            rank=rank, seq=None, stream=stream, issue_ns=stream, start_ns=start, duration_ns=end - start
        )
        for rank, first, second in (
            (0, (20, 1000 * US, 5000 * US), (21, 1200 * US, 9000 * US)),
            (1, (21, 1000 * US, 9000 * US), (20, 1200 * US, 5000 * US)),
        )
        for stream, start, end in (first, second)
    ]
    ids = matched(rows)
    assert ids[0] == ids[3] != ids[1] == ids[2]
    assert None not in ids
    # An issue time that one of them lacks leaves the order in which they began.
    rows[0] = replace(rows[0], issue_ns=None)
    ids = matched(rows)
    assert ids[0] == ids[2] != ids[1] == ids[3]


def test_a_small_clock_error_is_clipped():
    # Rank 1 arrives 0.5 ms after rank 0 left: within what clocks of one host can be off.
    rows = filled(
        [
            collective(rank=0, start_ns=0, duration_ns=2 * MS),
            collective(rank=1, start_ns=2 * MS + 500 * US, duration_ns=MS),
        ]
    )
    assert [(row.wait_ns, row.transfer_ns) for row in rows] == [(2 * MS, 0), (0, MS)]
    # A transfer of no time has no bandwidth.
    assert rows[0].busbw_gbps is None


def test_clocks_that_plainly_disagree_leave_waiting_unknown_and_are_reported():
    rows = [collective(rank=0, start_ns=0), collective(rank=1, start_ns=9 * MS)]
    assert [row.wait_ns for row in filled(rows)] == [None, None]
    hosts = run_of(hosts=("a", "b"), ranks_per_host=1)
    (finding,) = (
        f for f in running("clock-skew")(ledger(rows, run=hosts)).findings if f.kind == "clock-skew"
    )
    assert finding.ranks == (0, 1)
    assert finding.count == 1
    assert "disagree by 9.00 ms" in finding.title


def test_ranks_of_one_host_have_one_clock():
    rows = [collective(rank=0, start_ns=0), collective(rank=1, start_ns=9 * MS)]
    found = {f.kind: f.title for f in running("clock-skew", "incomplete-input")(ledger(rows)).findings}
    assert "clock-skew" not in found
    assert "left before another rank of its host arrived" in found["incomplete-input"]


def test_collectives_of_nothing_prove_nothing_about_clocks():
    rows = [collective(rank=rank, start_ns=rank * 9 * MS, message_bytes=0) for rank in (0, 1)]
    assert "clock-skew" not in kinds(rows, run=run_of(hosts=("a", "b"), ranks_per_host=1))
    assert "incomplete-input" not in kinds(rows)


def test_the_root_of_a_broadcast_may_leave_early():
    rows = [
        collective(rank=0, op="broadcast", start_ns=0),
        collective(rank=1, op="broadcast", start_ns=9 * MS),
    ]
    assert "clock-skew" not in kinds(rows)
    assert [row.wait_ns for row in filled(rows)] == [None, None], "without a root nobody is known to wait"
    rows = [replace(row, root=0) for row in rows]
    assert "clock-skew" not in kinds(rows)
    assert [row.wait_ns for row in filled(rows)] == [0, 0]


def test_what_a_record_knew_before_is_kept_where_nothing_better_is_known():
    (row,) = filled([collective(seq=None, group="other", wait_ns=5, transfer_ns=7, busbw_gbps=1.5)])
    assert (row.wait_ns, row.transfer_ns) == (5, 7)


def test_floors_come_from_the_fabric_and_the_place_of_the_group():
    (row, _) = filled(on_ranks((0, 1)))
    cost = collective_cost(load_fabric("loopback-gloo"), "all_reduce", 1 << 20, Placement(2, 1, 2))
    assert cost is not None
    assert (row.floor_ns, row.light_ns) == (cost.floor_ns, cost.light_ns)
    assert all(row.floor_ns is None for row in filled(on_ranks((0, 1)), run=run_of(backend="fake")))
    hosts = run_of(hosts=("a", "b"), ranks_per_host=1)
    # The loopback fabric has no link between hosts.
    assert all(row.floor_ns is None for row in filled(on_ranks((0, 1)), run=hosts))


def test_a_send_is_placed_by_its_peer():
    run_on_two = run_of(4, device="NVIDIA H100 80GB HBM3", backend="nccl", hosts=("a", "b"), ranks_per_host=2)
    near = collective(rank=0, op="send", root=1, group_size=4)
    far = collective(rank=0, op="send", root=2, group_size=4, seq=2)
    lost = collective(rank=0, op="send", root=None, group_size=4, seq=3)
    floors = [row.floor_ns for row in filled([near, far, lost], run=run_on_two)]
    assert floors[0] < floors[1]
    assert floors[2] is None


def test_steps_that_a_rank_did_not_finish_prove_nothing():
    rows = [*on_ranks((0, 1)), collective(rank=0, step=1, seq=2)]
    finished = [step(0, 0), step(0, 1), step(1, 0)]
    assert "unmatched-collectives" not in kinds(rows, steps=finished)
    assert "unmatched-collectives" in kinds(rows, steps=[*finished, step(1, 1)])
