"""Costs against closed forms worked out by hand, and what must hold for every op and size."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.roofline import (
    UNKNOWN,
    Placement,
    collective_cost,
    known_fabrics,
    load_fabric,
    one_node,
)
from shardtoll.ledger.volume import OPS, wire_bytes
from tests.unit.analyzers.fabrics import ROUND

S = 8_000_000


@pytest.mark.parametrize(
    ("op", "ranks", "algorithm", "steps", "sent", "time_ns"),
    [
        # ring: 100 + 2(n-1) 10 + 2(n-1)/n S / 10
        ("all_reduce", 4, "ring", 6, 12_000_000, 100 + 60 + 1_200_000),
        ("all_gather", 4, "ring", 3, 6_000_000, 100 + 30 + 600_000),
        ("reduce_scatter", 8, "ring", 7, 7_000_000, 100 + 70 + 700_000),
        # a tree of ceil(log2 n) hops beats a chain of n-1
        ("broadcast", 8, "tree", 3, S, 100 + 30 + 800_000),
        ("reduce", 5, "tree", 3, S, 100 + 30 + 800_000),
        ("broadcast", 2, "chain", 1, S, 100 + 10 + 800_000),
        ("all_to_all", 4, "pairwise", 3, 6_000_000, 100 + 30 + 600_000),
        ("gather", 4, "direct", 1, 6_000_000, 100 + 10 + 600_000),
        ("scatter", 4, "direct", 1, 6_000_000, 100 + 10 + 600_000),
        ("send", 2, "direct", 1, S, 100 + 10 + 800_000),
        ("recv", 2, "direct", 1, S, 100 + 10 + 800_000),
        # a barrier is an all_reduce of nothing
        ("barrier", 4, "ring", 6, 0, 100 + 60),
    ],
)
def test_one_host_closed_forms(op, ranks, algorithm, steps, sent, time_ns):
    cost = collective_cost(ROUND, op, S, one_node(ranks))
    assert cost is not None
    assert (cost.algorithm, cost.steps, cost.wire_bytes, cost.time_ns) == (algorithm, steps, sent, time_ns)


def test_ring_over_hosts_crosses_the_network_once_a_host():
    # 8 ranks on 2 hosts, all_gather: 7 hops of which 1 over the network; 4 cards of 2 GB/s beat 10.
    cost = collective_cost(ROUND, "all_gather", S, Placement(8, 2, 4))
    assert cost is not None
    assert cost.latency_ns == 100 + 50 + 6 * 10 + 1 * 1000
    assert cost.time_ns == cost.latency_ns + 7_000_000 // 8


def test_one_rank_a_host_never_touches_the_inner_link():
    cost = collective_cost(ROUND, "reduce_scatter", S, Placement(4, 4, 1))
    assert cost is not None
    assert cost.time_ns == 100 + 50 + 3 * 1000 + 6_000_000 // 2


def test_small_all_reduce_over_many_hosts_takes_the_tree():
    # 16 hosts of 2: tree 2(g-1) + 2 log2 k hops, ring 2(n-1) of which 2(k-1) over the network.
    at = Placement(32, 16, 2)
    small = collective_cost(ROUND, "all_reduce", 1000, at)
    large = collective_cost(ROUND, "all_reduce", 1 << 30, at)
    assert small is not None
    assert large is not None
    assert (small.algorithm, small.steps) == ("tree", 2 + 8)
    assert small.latency_ns == 100 + 50 + 2 * 10 + 8 * 1000
    # Large: each host sends 2 S over its two cards in the tree, 2(n-1)/n S in the ring.
    assert large.algorithm == "ring"


def test_two_hosts_exchange_the_message_once_in_the_tree():
    # NCCL reaches more than the sum of the cards on two hosts: S bytes a host, not 2(n-1)/n S.
    cost = collective_cost(ROUND, "all_reduce", 1 << 30, Placement(8, 2, 4))
    assert cost is not None
    assert cost.algorithm == "tree"
    within_ns = 2 * 3 / 4 * (1 << 30) / 10
    over_ns = (1 << 30) / (4 * 2)
    assert cost.time_ns == math.ceil(100 + 50 + 60 + 2000 + max(within_ns, over_ns))


def test_all_to_all_over_hosts_is_bound_by_the_slower_link():
    # 8 ranks on 2 hosts: 4/8 S over a card of 2 GB/s, 3/8 S inside at 10 GB/s.
    cost = collective_cost(ROUND, "all_to_all", S, Placement(8, 2, 4))
    assert cost is not None
    assert cost.time_ns == 100 + 50 + 3 * 10 + 4 * 1000 + 4_000_000 // 2


def test_gather_over_hosts_comes_through_the_roots_card():
    cost = collective_cost(ROUND, "gather", S, Placement(8, 2, 4))
    assert cost is not None
    assert cost.time_ns == 50 + 1000 + 4_000_000 // 2


def test_send_between_hosts_goes_over_the_network():
    cost = collective_cost(ROUND, "send", S, Placement(2, 2, 1))
    assert cost is not None
    assert cost.time_ns == 50 + 1000 + 4_000_000


def test_unknown_stays_unknown():
    assert collective_cost(ROUND, "all_reduce", None, one_node(2)) is None
    assert collective_cost(ROUND, "all_reduce", S, None) is None
    assert collective_cost(ROUND, "all_reduce_coalesced_v9", S, one_node(2)) is None
    assert collective_cost(UNKNOWN, "all_reduce", S, one_node(2)) is None
    # No network is known for PCIe machines.
    pcie = load_fabric("pcie-gen4")
    assert all(collective_cost(pcie, op, S, Placement(4, 2, 2)) is None for op in OPS)
    assert all(collective_cost(pcie, op, S, one_node(2)) is not None for op in OPS)


def test_a_group_of_one_costs_nothing():
    cost = collective_cost(ROUND, "all_reduce", S, one_node(1))
    assert cost is not None
    assert (cost.time_ns, cost.wire_bytes, cost.algorithm) == (0, 0, "none")


@pytest.mark.parametrize(("ranks", "nodes", "per_node"), [(0, 0, 0), (3, 4, 1), (5, 2, 2)])
def test_a_placement_that_cannot_be_is_refused(ranks, nodes, per_node):
    with pytest.raises(ValueError, match="do not fit"):
        Placement(ranks, nodes, per_node)


placements = st.tuples(st.integers(1, 16), st.integers(1, 8)).map(
    lambda shape: Placement(shape[0] * shape[1], shape[0], shape[1])
)


@given(
    op=st.sampled_from(OPS),
    size=st.integers(0, 1 << 34),
    more=st.integers(0, 1 << 34),
    at=placements,
    fabric=st.sampled_from([fabric for fabric in known_fabrics() if fabric.inter] + [ROUND]),
)
def test_costs_grow_with_bytes_and_parts_stay_within_the_whole(op, size, more, at, fabric):
    low = collective_cost(fabric, op, size, at)
    high = collective_cost(fabric, op, size + more, at)
    assert low is not None
    assert high is not None
    assert 0 <= low.latency_ns <= low.time_ns <= high.time_ns
    if op != "barrier":
        assert low.wire_bytes <= 2 * size + at.ranks


@given(
    op=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
    size=st.integers(0, 1 << 34),
    ranks=st.integers(2, 64),
)
def test_wire_bytes_of_a_ring_are_the_ledgers(op, size, ranks):
    cost = collective_cost(ROUND, op, size, one_node(ranks))
    assert cost is not None
    assert cost.algorithm in ("ring", "pairwise")
    assert cost.wire_bytes == wire_bytes(op, size, ranks)


# Published nccl-tests results: (fabric, op, ranks, nodes, bytes, us). The first three are of the
# sources named in the fabric files, the others NVIDIA/nccl-tests issue 309 (2, 4 and 8 nodes).
PUBLISHED = [
    ("h100x8-ib400", "all_reduce", 8, 1, 8, 12.90),
    ("h100x8-ib400", "all_reduce", 8, 1, 17179869184, 62239.0),
    ("h100x8-ib400", "all_gather", 8, 1, 17179869184, 41542.0),
    ("a100x8", "all_reduce", 8, 1, 1073741824, 8139.9),
    ("a100x8", "all_reduce", 16, 2, 268435456, 2740.5),
    ("h100x8-ib400", "all_reduce", 16, 2, 17179869184, 68652.0),
    ("h100x8-ib400", "all_reduce", 32, 4, 8589934592, 51285.0),
    ("h100x8-ib400", "all_gather", 80, 10, 17179868160, 52314.1),
    ("h100x8-ib400", "all_to_all", 80, 10, 17179868160, 336737.0),
]


@pytest.mark.parametrize(("name", "op", "ranks", "nodes", "size", "measured_us"), PUBLISHED)
def test_published_measurements_lie_above_the_floor_and_not_far(name, op, ranks, nodes, size, measured_us):
    cost = collective_cost(load_fabric(name), op, size, Placement(ranks, nodes, ranks // nodes))
    assert cost is not None
    assert 0.995 <= measured_us * 1000 / cost.time_ns <= 1.5
