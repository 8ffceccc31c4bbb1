"""Offset and drift of hosts' clocks, and what is said and corrected because of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardtoll.analyzers.context.clocks import Clock, Clocks, estimate, shared
from shardtoll.analyzers.context.match import match
from shardtoll.ledger import Group
from shardtoll.ledger.tables.tables import to_records
from tests.unit.analyzers.ledgers import MS, US, collective, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

run = running("clock-skew", "straggler")

EVERY = 100 * MS
HOSTS = ("a", "b")


def job(count=8, *, late=1, offset=0, drift_ppm=0.0, noise=(), hosts=HOSTS, per_host=1, **given):
    """Ranks that leave collective `n` at n * EVERY + 50 ms; the second half on a clock that is off.

    Rank 1 arrives `late` ms after the others, each transfer takes 2 ms.
    """
    ranks = len(hosts) * per_host
    rows = []
    for n in range(count):
        end = n * EVERY + 50 * MS
        for rank in range(ranks):
            shown = end + (noise[n % len(noise)] if noise and rank == 0 else 0)
            if rank >= ranks - per_host:
                shown += offset + round(drift_ppm * 1e-6 * end)
            long = 2 * MS if rank == 1 else 2 * MS + late * MS
            rows.append(
                collective(
                    rank=rank, seq=n + 1, group_size=ranks, start_ns=shown - long, duration_ns=long, **given
                )
            )
    return rows, run_of(ranks, hosts=hosts, ranks_per_host=per_host)


def clocks_of(rows, about):
    book = ledger(rows, run=about)
    frame = book.frame("collectives")
    return estimate(about, frame, match(book, frame)).clocks


def report(rows, about, **given):
    return run(ledger(rows, run=about, **given))


def waits(rows, about):
    return [row.wait_ns for row in to_records("collectives", report(rows, about).tables["collectives"])]


def test_an_offset_is_found_exactly_and_taken_out_of_the_waiting():
    rows, about = job(offset=30 * MS)
    first, second = clocks_of(rows, about)
    assert (first.offset_ns, first.reference) == (0, "a")
    assert (second.host, second.offset_ns, second.drift_ppm, second.residual_ns) == ("b", 30 * MS, None, 0)
    assert waits(rows, about) == [1 * MS, 0] * 8
    (finding,) = (f for f in report(rows, about).findings if f.kind == "clock-skew")
    assert (finding.severity, finding.ranks) == ("info", (1,))
    assert finding.title.startswith("the clock of b is 30.0 ms ahead of that of a")
    evidence = {item.label: item.value for item in finding.evidence}
    assert evidence["offset of b (rank 1)"] == 30 * MS
    assert evidence["drift of b"] == "below the residual"


def test_a_drift_is_found_and_taken_out():
    rows, about = job(20, offset=-5 * MS, drift_ppm=50.0)
    _, second = clocks_of(rows, about)
    assert second.drift_ppm == pytest.approx(50.0, rel=0.01)
    # At the middle of the time looked at: 10 collectives' distance after the first one's end.
    assert second.offset_ns == pytest.approx(-5 * MS + 50e-6 * (50 * MS + 9.5 * EVERY), abs=US)
    got = np.array(waits(rows, about), dtype=np.int64).reshape(-1, 2)
    assert np.abs(got - [1 * MS, 0]).max() < US


def test_noise_of_ends_is_the_residual_and_below_it_nothing_is_claimed():
    noise = [-400 * US, 300 * US, 0, 500 * US, -200 * US]
    rows, about = job(20, offset=250 * US, noise=noise)
    _, second = clocks_of(rows, about)
    assert second.residual_ns is not None
    assert second.residual_ns > 250 * US
    assert not second.claimed
    assert "clock-skew" not in [f.kind for f in report(rows, about).findings]


@pytest.mark.parametrize(("offset", "claimed"), [(90 * US, False), (110 * US, True)])
def test_small_offsets_are_not_claimed(offset, claimed):
    rows, about = job(offset=offset)
    assert clocks_of(rows, about)[1].claimed is claimed
    assert waits(rows, about)[:2] == [1 * MS if claimed else 1 * MS + offset, 0]


def test_of_fewer_than_three_collectives_nothing_is_estimated():
    rows, about = job(2, offset=30 * MS)
    assert [clock.offset_ns for clock in clocks_of(rows, about)] == [None, None]
    assert waits(rows, about) == [None] * 4


def test_two_ends_that_differ_leave_waiting_unknown_even_where_it_would_make_sense():
    # 40 ms off in collectives of 50 ms: starts and ends overlap, and nobody is late.
    rows = [
        collective(rank=rank, seq=n + 1, start_ns=n * EVERY + rank * 40 * MS, duration_ns=50 * MS)
        for n in range(2)
        for rank in range(2)
    ]
    about = run_of(hosts=HOSTS, ranks_per_host=1)
    assert waits(rows, about) == [None] * 4
    found = {finding.kind: finding.title for finding in report(rows, about).findings}
    assert "straggler" not in found
    assert (
        found["clock-skew"] == "clocks of ranks 0-1 disagree by 40.0 ms: waiting in 2 collectives is unknown"
    )


def test_two_ends_that_agree_tie_clocks_for_all_collectives_of_these_hosts():
    rows, about = job(2, offset=90 * US)
    rooted = [
        collective(
            rank=rank, op="broadcast", root=1, seq=9, start_ns=990 * MS + rank * MS, duration_ns=5 * MS
        )
        for rank in range(2)
    ]
    first, second = clocks_of(rows, about)
    assert (second.offset_ns, second.residual_ns, second.collectives) == (0, 90 * US, 2)
    assert second.reference == first.reference == "a"
    assert waits(rows + rooted, about)[4:] == [MS, 0]
    assert waits(rooted, about) == [None, None], "no end says whether the clocks agree"


def test_pairs_tied_apart_are_tied_together_by_groups_across():
    about = run_of(4, hosts=("a", "b", "c", "d"), ranks_per_host=1)
    groups = (Group("ab", (0, 1)), Group("cd", (2, 3)), Group("ac", (0, 2)))
    ahead = {0: 0, 1: 10 * MS, 2: -7 * MS, 3: 20 * MS}

    def ends(names):
        rows = [
            collective(rank=rank, group=name, group_size=2, seq=n + 1, start_ns=n * EVERY + ahead[rank])
            for n in range(4)
            for name, ranks in names.items()
            for rank in ranks
        ]
        book = ledger(rows, run=about, groups=groups, steps=[step(rank=rank) for rank in range(4)])
        frame = book.frame("collectives")
        return estimate(about, frame, match(book, frame))

    pairs = {"ab": (0, 1), "cd": (2, 3)}
    assert list(ends(pairs).frames(np.arange(4))) == [0, 0, 1, 1]
    tied = ends(pairs | {"ac": (0, 2)})
    assert [clock.offset_ns for clock in tied.clocks] == [0, 10 * MS, -7 * MS, 20 * MS]
    assert {clock.reference for clock in tied.clocks} == {"a"}


def test_hosts_of_one_name_are_told_apart_by_their_ends():
    rows, about = job(5, offset=5 * MS, per_host=2)
    localhost = replace(about, source="trace", hosts=("x",), ranks_per_host=4, rank_hosts=("x",) * 4)
    found = clocks_of(rows, localhost)
    assert [(c.host, c.offset_ns) for c in found] == [
        (f"x (rank {rank})", offset) for rank, offset in enumerate((0, 0, 5 * MS, 5 * MS))
    ]
    assert waits(rows, localhost) == [MS, 0, MS, MS] * 5
    titles = [f.title for f in report(rows, localhost).findings if f.kind == "clock-skew"]
    assert titles == [
        "the clock of x (rank 2) is 5.00 ms ahead of that of x (rank 0), and 1 other clock differ too: "
        "waiting is computed on corrected times"
    ]


def test_ranks_of_a_host_that_leave_unsteadily_keep_their_clock():
    noise = [-400 * US, 300 * US, 0, 500 * US, -200 * US]
    rows, about = job(20, noise=noise)
    assert len(clocks_of(rows, replace(about, source="trace", hosts=("x",), ranks_per_host=2))) == 1


def test_uneven_all_to_all_says_nothing_of_clocks_that_are_off():
    rows, about = job(8, offset=30 * MS, op="all_to_all")
    assert clocks_of(rows, about)[1].offset_ns == 30 * MS
    uneven = [replace(row, message_bytes=8 << row.rank) for row in rows]
    assert clocks_of(uneven, about)[1].offset_ns is None
    # That their ends agree is no chance, though.
    agreeing = [replace(row, message_bytes=8 << row.rank) for row in job(8, op="all_to_all")[0]]
    assert clocks_of(agreeing, about)[1].offset_ns == 0
    assert waits(agreeing, about) == [MS, 0] * 8


def test_collectives_of_nothing_and_rooted_ones_say_nothing():
    for given in ({"message_bytes": 0}, {"op": "broadcast"}):
        rows, about = job(offset=30 * MS, **given)
        assert clocks_of(rows, about)[1].offset_ns is None


def test_large_messages_outweigh_small_ones():
    small, about = job(12, offset=2 * MS, message_bytes=8)
    large, _ = job(20, offset=30 * MS, message_bytes=1 << 24)
    rows = [*small, *(row for row in large if row.seq is not None and row.seq > 12)]
    assert clocks_of(rows, about)[1].offset_ns == 30 * MS


def test_ranks_of_a_host_share_one_clock():
    rows, about = job(offset=30 * MS, per_host=2)
    assert [(clock.host, clock.ranks) for clock in clocks_of(rows, about)] == [("a", (0, 1)), ("b", (2, 3))]
    one_host = run_of(4)
    assert [clock.offset_ns for clock in clocks_of(rows, one_host)] == [None]


def test_hosts_come_from_the_ranks_else_from_their_number_else_each_rank_is_alone():
    named = run_of(4, hosts=("x", "y"), ranks_per_host=2, rank_hosts=("x", "y", "x", None))
    assert [(c.host, c.ranks) for c in shared(named).clocks] == [("x", (0, 2)), ("y", (1,)), ("rank 3", (3,))]
    counted = run_of(4, hosts=(), ranks_per_host=2)
    assert [c.ranks for c in shared(counted).clocks] == [(0, 1), (2, 3)]
    alone = run_of(2, hosts=(), ranks_per_host=None, source="trace")
    assert [c.ranks for c in shared(alone).clocks] == [(0,), (1,)]


def test_groups_are_tied_together_by_the_host_they_share():
    about = run_of(3, hosts=("a", "b", "c"), ranks_per_host=1)
    groups = (Group("ab", (0, 1)), Group("bc", (1, 2)))
    ahead = {0: 0, 1: 10 * MS, 2: -7 * MS}
    rows = [
        collective(rank=rank, group=group, group_size=2, seq=n + 1, start_ns=n * EVERY + ahead[rank])
        for n in range(4)
        for group, ranks in (("ab", (0, 1)), ("bc", (1, 2)))
        for rank in ranks
    ]
    book = ledger(rows, run=about, groups=groups, steps=[step(rank=rank) for rank in range(3)])
    frame = book.frame("collectives")
    found = estimate(about, frame, match(book, frame)).clocks
    assert [clock.offset_ns for clock in found] == [0, 10 * MS, -7 * MS]
    assert {clock.reference for clock in found} == {"a"}


def test_times_are_corrected_by_offset_and_drift():
    clock = Clock("b", (1,), "a", 10 * MS, 100.0, 0, 5, at_ns=0, span_ns=1000 * MS)
    assert clock.largest_ns == 10 * MS + 50 * US
    clocks = Clocks((Clock("a", (0,), "a", 0, None, 0), clock))
    got = clocks.corrected(np.array([0, 1, 1]), np.array([5, 10 * MS, 1010 * MS]))
    assert list(got) == [5, -1 * US, 1000 * MS - 101 * US]
