"""Traces whose windows differ: collectives matched by when they ended, and never by guess."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.roofline import UNKNOWN
from shardtoll.ledger import Notice
from shardtoll.ledger.tables.tables import to_records
from tests.unit.analyzers.ledgers import MS, US, collective, ledger, run_of
from tests.unit.analyzers.of_kinds import running

run = running("clock-skew", "incomplete-input", "unmatched-collectives")


def trace(**given):
    return run_of(source="trace", hosts=("h",), **given)


def ends(rank, times, **given):
    """Return collectives without numbers of one rank that end at these times, 1 ms long."""
    return [
        collective(rank=rank, seq=None, start_ns=end - MS, duration_ns=MS, issue_ns=None, **given)
        for end in times
    ]


def matched(rows, about):
    context = make_context(ledger(rows, run=about), UNKNOWN)
    ids = context.collectives["match_id"]
    return [None if value is None else int(value) for value in ids.astype(object).where(ids.notna(), None)]


TIMES = [n * 10 * MS + n * n * MS for n in range(1, 7)]


def test_cut_windows_are_aligned_by_end():
    rows = ends(0, TIMES) + ends(1, [time + 20 * US for time in TIMES[2:]])
    ids = matched(rows, trace())
    assert ids[:2] == [None, None]
    assert ids[2:6] == ids[6:]
    assert len(set(ids[2:6])) == 4
    findings = run(ledger(rows, run=trace())).findings
    (left,) = (f for f in findings if f.kind == "incomplete-input")
    assert left.title.startswith("2 of 10 collectives match none of the other ranks' for sure")
    assert "unmatched-collectives" not in [f.kind for f in findings]


def test_waiting_follows_from_the_alignment():
    late = ends(1, TIMES[2:])
    rows = ends(0, TIMES) + [
        collective(rank=1, seq=None, start_ns=row.start_ns + 300 * US, duration_ns=700 * US) for row in late
    ]
    report = run(ledger(rows, run=trace()))
    got = [row.wait_ns for row in to_records("collectives", report.tables["collectives"])]
    assert got == [None, None] + [300 * US] * 4 + [0] * 4


def test_live_runs_are_never_aligned():
    rows = ends(0, TIMES) + ends(1, TIMES[2:])
    assert matched(rows, run_of()) == [None] * 10


def test_two_candidates_that_end_together_stay_open():
    rows = ends(0, [10 * MS, 10 * MS + 50 * US, 90 * MS]) + ends(1, [10 * MS + 20 * US, 90 * MS])
    ids = matched(rows, trace())
    assert ids[:2] == [None, None]
    assert ids[3] is None
    assert ids[2] == ids[4] is not None


def between(first, second):
    """Return the matches of two ranks with the same collectives, but for what lies between 24 and 39 ms."""
    known = [11 * MS, 24 * MS, 39 * MS, 56 * MS, 75 * MS]
    rows = ends(0, sorted([*known, *first])) + ends(1, sorted([*known[1:], *second]))
    ids = matched(rows, trace())
    return ids[1 : 3 + len(first)], ids[5 + len(first) : 7 + len(first) + len(second)]


def test_what_lies_between_matched_neighbours_is_matched_by_order():
    pair = [30 * MS, 30 * MS + 50 * US]
    ours, theirs = between(pair, [time + 20 * US for time in pair])
    assert None not in ours
    assert ours == theirs


def test_between_neighbours_other_numbers_or_times_stay_open():
    pair = [30 * MS, 30 * MS + 50 * US]
    assert between(pair, [30 * MS + 20 * US])[0][1:3] == [None, None]
    # Nobody leaves before all have come: these are not the same.
    assert between(pair, [33 * MS, 33 * MS + 50 * US])[0][1:3] == [None, None]


def test_devices_enough_for_all_ranks_are_one_host_whose_order_counts():
    rows = ends(0, TIMES) + ends(1, [time + 200 * US for time in TIMES])
    unmarked = [Notice(rank, "no-steps", "no step is marked") for rank in (0, 1)]

    def context(devices):
        about = run_of(
            source="trace", hosts=(), ranks_per_host=None, backend="nccl", devices_per_host=devices
        )
        return make_context(ledger(rows, run=about, notices=unmarked), UNKNOWN)

    one, apart = context(2), context(1)
    assert len(one.clocks.clocks) == 1
    assert one.collectives["match_id"].notna().all()
    assert not any(clock.claimed for clock in one.clocks.clocks)
    assert len(apart.clocks.clocks) == 2


def test_op_dtype_and_size_must_agree():
    for other in ({"op": "all_gather"}, {"dtype": "int8"}, {"message_bytes": 4}):
        rows = ends(0, TIMES) + ends(1, TIMES[1:], **other)
        assert set(matched(rows, trace())) == {None}, other


def test_an_unknown_clock_is_shifted_only_where_one_offset_is_clearly_best():
    away = run_of(source="trace", hosts=(), ranks_per_host=None)
    rows = ends(0, TIMES) + ends(1, [time + 700 * MS for time in TIMES[1:]])
    ids = matched(rows, away)
    assert ids[0] is None
    assert ids[1:6] == ids[6:]
    assert None not in ids[1:]
    # Evenly spaced ones fit at many offsets.
    even = [n * 10 * MS for n in range(4)]
    rows = ends(0, even) + ends(1, [time + 703 * MS for time in even[1:]])
    assert set(matched(rows, away)) == {None}


def test_counts_equal_by_chance_are_not_matched_by_place():
    first = ends(0, [10 * MS], message_bytes=8) + ends(0, [50 * MS], message_bytes=16)
    second = ends(1, [30 * MS], message_bytes=4) + ends(1, [90 * MS], message_bytes=16)
    assert set(matched(first + second, trace())) == {None}


def test_without_sizes_on_any_rank_order_and_op_decide():
    rows = [collective(rank=rank, seq=None, message_bytes=None) for rank in (0, 1)]
    assert matched(rows, trace()) == [0, 0]
    context = make_context(ledger(rows, run=trace()), UNKNOWN)
    assert list(context.matches.rows["likely"]) == [True, True]


def test_a_number_outside_the_other_ranks_window_is_no_disagreement():
    rows = [collective(rank=0, seq=n) for n in (1, 2, 3)] + [collective(rank=1, seq=n) for n in (2, 3, 4)]
    assert "unmatched-collectives" not in [f.kind for f in run(ledger(rows, run=trace())).findings]
    inside = [collective(rank=0, seq=n) for n in (1, 2, 3)] + [collective(rank=1, seq=n) for n in (1, 3)]
    assert "unmatched-collectives" in [f.kind for f in run(ledger(inside, run=trace())).findings]


def even(rank, numbers, **given):
    """Return equal collectives 10 ms apart."""
    return ends(rank, [n * 10 * MS for n in numbers], **given)


@pytest.mark.parametrize("about", [trace(), run_of(source="trace", hosts=(), ranks_per_host=None)])
@pytest.mark.parametrize("notices", [(), (Notice(0, "no-steps", "no steps"),)])
def test_windows_shifted_by_one_of_many_equal_collectives_are_no_clock_that_is_off(about, notices):
    rows = even(0, range(10)) + even(1, range(1, 11))
    book = ledger(rows, run=about, notices=notices)
    ids = make_context(book, UNKNOWN).collectives["match_id"]
    assert list(ids[1:10]) == list(ids[10:19])
    assert ids[[0, 19]].isna().all()
    assert len(set(ids.dropna())) == 9
    assert "clock-skew" not in [finding.kind for finding in run(book).findings]


def test_a_clock_that_is_off_is_no_shifted_window():
    away = run_of(source="trace", hosts=("a", "b"), ranks_per_host=1)
    rows = ends(0, TIMES) + ends(1, [time + 11 * MS for time in TIMES])
    ids = matched(rows, away)
    assert ids[:6] == ids[6:]
    assert None not in ids
    # So close to each other that ends agree by chance: order stands.
    close = [n * 80 * US for n in range(40)]
    rows = ends(0, close) + ends(1, [time + 801 * US for time in close])
    ids = matched(rows, away)
    assert ids[:40] == ids[40:]


def test_unmarked_steps_are_not_matched_by_order():
    rows = ends(0, [10 * MS]) + ends(1, [90 * MS])
    marked = make_context(ledger(rows, run=trace()), UNKNOWN).collectives["match_id"]
    assert marked.notna().all()
    book = ledger(rows, run=trace(), notices=[Notice(1, "no-steps", "no steps")])
    assert make_context(book, UNKNOWN).collectives["match_id"].isna().all()


def test_numbers_of_messages_are_not_given_again():
    rows = [
        *ends(0, [5 * MS], op="send", root=1),
        *ends(1, [5 * MS], op="recv", root=0),
        *ends(0, TIMES),
        *ends(1, TIMES[1:]),
    ]
    ids = matched(rows, trace())
    assert ids[0] == ids[1] is not None
    assert ids.count(ids[0]) == 2
