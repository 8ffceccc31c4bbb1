from __future__ import annotations

import pytest

from shardtoll.ledger import Ledger, merge
from shardtoll.ledger.tables.ledger import concatenated, empty_tables
from shardtoll.ledger.tables.tables import to_records, to_table


def test_times_count_from_the_earliest_epoch_and_unknown_stays_unknown(make):
    early = make.ledger(rank=1, epoch_ns=make.EPOCH_NS)
    late = make.ledger(rank=0, epoch_ns=make.EPOCH_NS + 5_000)
    late = Ledger(
        late.run,
        late.groups,
        {**late.tables, "collectives": to_table("collectives", [make.collective(start_ns=None)])},
    )
    merged = merge([late, early])
    assert merged.run.epoch_ns == make.EPOCH_NS
    moved = to_records("collectives", merged.tables["collectives"])[0]
    assert (moved.rank, moved.issue_ns, moved.start_ns, moved.duration_ns) == (0, 5_100, None, 300)
    starts = {(step.rank, step.step): step.start_ns for step in to_records("steps", merged.tables["steps"])}
    assert starts == {(0, 0): 5_000, (0, 1): 6_000, (1, 0): 0, (1, 1): 1_000}
    computes = to_records("computes", merged.tables["computes"])
    assert [row.start_ns for row in computes] == [5_010, 5_010, 10, 10]


def test_an_epoch_shift_does_not_round_large_times(make):
    far_ns = 2**53 + 1
    rows = {**empty_tables(), "steps": to_table("steps", [make.step(start_ns=far_ns)])}
    parts = [
        Ledger(make.run(ranks_seen=(0,), epoch_ns=2), (), rows),
        Ledger(make.run(ranks_seen=(1,), epoch_ns=0), (), empty_tables()),
    ]
    assert to_records("steps", merge(parts).tables["steps"])[0].start_ns == far_ns + 2


def test_rows_stand_by_rank_whatever_the_order_of_parts(make):
    parts = [make.ledger(rank=rank) for rank in (2, 0, 3)]
    merged = merge(parts)
    assert merged.run.ranks_seen == (0, 2, 3)
    assert merged.run.ranks_missing == (1,)
    assert merged.tables["steps"].column("rank").to_pylist() == [0, 0, 2, 2, 3, 3]
    assert merge(parts[::-1]) == merged


def test_one_part_merges_to_itself(make):
    part = make.ledger(ranks_per_host=4)
    assert merge([part]) == part


def test_a_merged_ledger_merges_again(make):
    parts = [make.ledger(rank=rank) for rank in range(4)]
    whole = merge(parts)
    halves = merge([merge(parts[2:]), merge(parts[:2])])
    assert halves.run.ranks_seen == whole.run.ranks_seen
    assert halves.tables == whole.tables


@pytest.mark.parametrize(
    ("bound", "hosts", "cores"),
    [
        # Each rank has a core of its own: together they have as many.
        (((0,), (1,), (2,), (3,)), "aaaa", 4),
        (((0, 1),) * 4, "aaaa", 2),
        (((0, 1), (2, 3), (0, 1), (2, 3)), "aaaa", 4),
        (((0, 1), (2, 3), (0,), (0,)), "aabb", 1),
        # Of one rank it is not known which cores those are.
        (((0,), (), (2,), (3,)), "aaaa", 1),
    ],
)
def test_cores_of_a_host_are_those_of_its_ranks_together(make, bound, hosts, cores):
    parts = [
        make.ledger(rank, world_size=4, hosts=(host,), cores=max(1, len(ids)), core_ids=ids)
        for rank, (host, ids) in enumerate(zip(hosts, bound, strict=True))
    ]
    assert merge(parts).run.cores == cores
    assert merge(parts).run.core_ids == ()


@pytest.mark.parametrize(
    ("ranks", "worlds", "message"),
    [
        ((), (), "no ledgers to merge"),
        ((0, 1, 1), (4, 4, 4), r"a rank comes twice among \[0, 1, 1\]"),
        ((0, 1), (4, 8), r"jobs of different world sizes \[4, 8\]"),
    ],
)
def test_what_cannot_be_one_job_is_refused(make, ranks, worlds, message):
    parts = [make.ledger(rank, world_size=world) for rank, world in zip(ranks, worlds, strict=True)]
    with pytest.raises(ValueError, match=message):
        merge(parts)


def test_a_group_is_listed_once_and_keeps_the_mesh_dimension_one_rank_knew(make):
    parts = [make.ledger(rank) for rank in range(2)]
    unnamed = make.group(mesh_dim=None)
    sibling = make.group(ranks=(4, 5, 6, 7))
    first = Ledger(parts[0].run, (unnamed,), parts[0].tables)
    second = Ledger(parts[1].run, (make.group(), sibling), parts[1].tables)
    for order in ([first, second], [second, first]):
        assert set(merge(order).groups) == {make.group(), sibling}


def test_group_by_name_is_the_largest_of_that_name(make):
    part = make.ledger()
    pair = make.group(ranks=(0, 1))
    ledger = Ledger(part.run, (pair, make.group()), part.tables)
    assert ledger.group("tp") == make.group()
    assert ledger.group("dp") is None


def test_the_same_finding_of_several_ranks_is_kept_once(make):
    parts = [make.ledger(rank) for rank in range(3)]
    assert merge(parts).findings == (make.finding(),)


@pytest.mark.parametrize(
    ("said", "whole"),
    [
        (("inference", "training"), "training"),
        (("training", None), "training"),
        ((None, "inference"), "inference"),
        ((None, None), None),
    ],
)
def test_a_rank_that_shows_a_backward_speaks_for_all(make, said, whole):
    parts = [make.ledger(rank=rank, workload=word) for rank, word in enumerate(said)]
    assert merge(parts).run.workload == whole
    assert concatenated([merge(parts), merge(parts)]).run.workload == whole


def test_hosts_and_mesh_are_gathered(make):
    parts = [
        make.ledger(0, hosts=("a",), mesh={}),
        make.ledger(1, hosts=("a",), mesh={"dp": 2, "tp": 2}),
        make.ledger(2, hosts=("b",), mesh={}),
    ]
    merged = merge(parts).run
    assert merged.hosts == ("a", "b")
    assert merged.mesh == {"dp": 2, "tp": 2}


@pytest.mark.parametrize(
    ("hosts", "said", "expected"),
    [
        ("aabb", None, 2),  # counted
        ("aaab", None, None),  # uneven
        ("aaa", None, None),  # a rank is missing: it may be the fourth on `a` or one on another host
        ("aab", 2, 2),  # what the ranks know themselves holds with one of them missing
        ("aaaa", 4, 4),
    ],
)
def test_ranks_per_host_is_known_or_unknown_never_guessed(make, hosts, said, expected):
    parts = [make.ledger(rank, hosts=(host,), ranks_per_host=said) for rank, host in enumerate(hosts)]
    assert merge(parts).run.ranks_per_host == expected


def test_ranks_that_disagree_on_ranks_per_host_are_counted(make):
    parts = [make.ledger(rank, hosts=("a",), ranks_per_host=said) for rank, said in enumerate((2, 4, 4, 4))]
    assert merge(parts).run.ranks_per_host == 4


def test_a_ledger_of_other_columns_is_refused(make):
    part = make.ledger()
    with pytest.raises(ValueError, match="table steps does not have the ledger's schema"):
        Ledger(part.run, part.groups, {**part.tables, "steps": part.tables["counts"]})


def test_frame_reads_one_table(make):
    frame = make.ledger(steps=3).frame("steps")
    assert frame["step"].tolist() == [0, 1, 2]
    assert frame["duration_ns"].sum() == 3000
