"""Which ranks share a host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers.roofline import (
    Placement,
    collective_cost,
    hosts_note,
    load_fabric,
    one_node,
    place,
    ranks_per_host,
)
from tests.unit.analyzers.fabrics import ROUND
from tests.unit.analyzers.ledgers import run_of


@pytest.mark.parametrize(
    ("ranks", "per_host", "expected"),
    [
        ((0, 1, 2, 3), 4, one_node(4)),
        ((0, 1, 2, 3), 2, Placement(4, 2, 2)),
        ((0, 4, 8, 12), 4, Placement(4, 4, 1)),
        ((3, 4), 4, Placement(2, 2, 1)),
        ((0, 1, 4), 4, Placement(3, 2, 2, fewest_ranks=1)),
        ((7,), None, one_node(1)),
        ((0, 1), None, None),
    ],
)
def test_placement_follows_consecutive_ranks(ranks, per_host, expected):
    assert place(ranks, per_host) == expected


def test_a_whole_run_tells_its_ranks_per_host():
    assert ranks_per_host(run_of(8, ranks_per_host=4, hosts=("a", "b")), ROUND) == 4


def test_hosts_of_one_nvlink_domain_count_as_one():
    rack = load_fabric("gb200-nvl72-ib400")
    hosts = tuple(f"tray{number}" for number in range(36))
    assert ranks_per_host(run_of(8, ranks_per_host=4, hosts=hosts[:2]), rack) == 8
    two_racks = run_of(144, ranks_per_host=4, hosts=hosts)
    assert ranks_per_host(two_racks, rack) == 72
    assert place(range(144), ranks_per_host(two_racks, rack)) == Placement(144, 2, 72)


def test_a_run_with_missing_ranks_is_not_believed():
    # Three of four seen on one host: merge counts three a host, but nobody moved house.
    run = run_of(4, ranks_seen=(0, 1, 2), ranks_per_host=3)
    assert ranks_per_host(run, ROUND) == 4
    assert ranks_per_host(run, load_fabric("h100x8-ib400")) == 8


H100 = "h100x8-ib400"


@pytest.mark.parametrize(
    ("world", "hosts", "expected", "assumed"),
    [
        # Rank 5 of two hosts of four is missing: the others tell where a host ends.
        (8, "aaaab bb", 4, False),
        # A host of eight of which one rank is missing.
        (8, "aaaaaaa ", 8, False),
        # A whole host may be missing, or half of one: the fabric's number, said to be assumed.
        (8, "aaaa    ", 8, True),
        (16, "aaaaaaaa        ", 8, True),
        # No number of ranks a host fits.
        (8, "aabababa"[:7] + " ", 8, False),
    ],
)
def test_hosts_of_the_ranks_seen_decide_as_far_as_they_do(world, hosts, expected, assumed):
    seen = tuple(rank for rank in range(world) if hosts[rank] != " ")
    names = tuple(hosts[rank] for rank in seen)
    run = run_of(world, ranks_seen=seen, rank_hosts=names, hosts=tuple(dict.fromkeys(names)))
    fabric = load_fabric(H100)
    assert ranks_per_host(run, fabric) == expected
    assert ("8 ranks a host are assumed" in hosts_note(run, fabric)) is assumed


def test_an_assumption_says_what_the_other_choice_would_do():
    run = run_of(8, ranks_seen=(0, 1, 2, 3), rank_hosts=("a",) * 4)
    assert hosts_note(run, load_fabric(H100)).endswith("; with 4 a host floors would be higher")
    assert hosts_note(run_of(8), load_fabric(H100)) == ""


def test_several_hosts_of_unknown_width_are_unknown():
    run = run_of(4, hosts=("a", "b"), ranks_per_host=None)
    assert ranks_per_host(run, replace(ROUND, ranks_per_node=None)) is None
    assert ranks_per_host(run, load_fabric("a100x8")) == 8


def test_the_host_with_the_fewest_ranks_bounds_what_goes_through_all():
    fabric = load_fabric("h100x8-ib400")
    size = 1 << 32
    at = place(range(9), 8)
    assert at == Placement(9, 2, 8, fewest_ranks=1)
    even = collective_cost(fabric, "all_reduce", size, Placement(16, 2, 8))
    uneven = collective_cost(fabric, "all_reduce", size, at)
    assert even is not None
    assert uneven is not None
    # One card of 50 GB/s carries the sum of all ranks.
    assert uneven.light_ns == pytest.approx(size / 50, rel=1e-6)
    assert even.time_ns < uneven.light_ns <= uneven.low_ns
    for op in ("all_gather", "reduce_scatter", "all_to_all"):
        found = collective_cost(fabric, op, size, at)
        assert found is not None
        assert found.light_ns == pytest.approx(8 / 9 * size / 50, rel=1e-6)
        assert found.light_ns < found.time_ns


@pytest.mark.parametrize("ranks", [72, 64, 36])
def test_a_part_of_an_nvlink_domain_has_switches_that_add(ranks):
    found = collective_cost(load_fabric("gb200-nvl72"), "all_reduce", 1 << 32, one_node(ranks))
    assert found is not None
    assert found.algorithm == "nvls"
