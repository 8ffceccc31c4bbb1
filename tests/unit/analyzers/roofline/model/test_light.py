"""Speed of light against simulated ranks: no algorithm, run at the links' full rates, may be faster.

An algorithm's bytes take at least what its busiest rank sends or gets within its host at the link's rate, and
what it sends or gets over its own card at that card's.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from shardtoll.analyzers.roofline import (
    Fabric,
    Placement,
    Quantity,
    collective_cost,
    known_fabrics,
    load_fabric,
    one_node,
)
from shardtoll.analyzers.roofline.model.library import load_library
from shardtoll.analyzers.roofline.model.light import light_ns_per_byte
from shardtoll.analyzers.roofline.model.model import ALGORITHMS, candidates, machine_of
from shardtoll.analyzers.roofline.model.pricing import Pricing
from shardtoll.ledger.records.volume import OPS
from tests.unit.analyzers import algorithms_oracle as oracle
from tests.unit.analyzers.simulated import Traffic, World

S = 1 << 40
WORLDS = [
    World(*shape)
    for shape in [(1, 2), (1, 5), (1, 8), (2, 2), (2, 8), (3, 3), (4, 4), (5, 1), (2, 1), (6, 4)]
]
RING_LIKE = {
    "all_reduce": [
        oracle.ring_all_reduce,
        oracle.double_tree_all_reduce,
        oracle.recursive_doubling_all_reduce,
        oracle.halving_doubling_all_reduce,
        oracle.two_level_all_reduce,
    ],
    "all_gather": [
        oracle.ring_all_gather,
        oracle.bruck_all_gather,
        oracle.pat_all_gather,
        oracle.two_level_all_gather,
    ],
    "reduce_scatter": [
        oracle.ring_reduce_scatter,
        oracle.pat_reduce_scatter,
        oracle.two_level_reduce_scatter,
    ],
    "broadcast": [oracle.chain_broadcast, oracle.binomial_broadcast],
    "reduce": [oracle.chain_reduce, oracle.binomial_reduce],
    "all_to_all": [oracle.pairwise_all_to_all],
    "gather": [oracle.direct_gather],
    "scatter": [oracle.direct_scatter],
}
CASES = [(op, run) for op, runs in RING_LIKE.items() for run in runs]


def fabric(world: World, name: str, near_gbps: float, card_gbps: float, *, sharp: bool = False) -> Fabric:
    """Return a machine with a card a rank and these rates."""

    def number(value: float) -> Quantity:
        return Quantity(value, "made for a test", "derived")

    known = load_fabric(name)
    assert known.intra is not None
    assert known.inter is not None
    return replace(
        known,
        sharp=sharp,
        ranks_per_node=number(world.per_node),
        intra=replace(known.intra, rank_gbps=number(near_gbps), peers=None),
        inter=replace(
            known.inter,
            rank_gbps=number(card_gbps),
            node_gbps=number(card_gbps * world.per_node),
            cards=number(world.per_node),
        ),
    )


def light_ns(machine: Fabric, op: str, world: World) -> int:
    found = collective_cost(machine, op, S, Placement(world.ranks, world.nodes, world.per_node))
    assert found is not None
    return found.light_ns


def full_speed_ns(took: Traffic, near_gbps: float, card_gbps: float) -> float:
    near, net = max((*took.near, *took.near_in)), max((*took.net, *took.net_in))
    return max(float(near) * S / near_gbps, float(net) * S / card_gbps)


@pytest.mark.parametrize("rates", [(450.0, 50.0), (50.0, 50.0), (20.0, 100.0)], ids=str)
@pytest.mark.parametrize("world", WORLDS, ids=str)
@pytest.mark.parametrize(("op", "run"), CASES, ids=[run.__name__ for _, run in CASES])
def test_no_algorithm_is_faster_than_light(op, run, world, rates):
    machine = fabric(world, "a100x8-ib200", *rates)
    assert light_ns(machine, op, world) <= full_speed_ns(run(world), *rates) * (1 + 1e-9) + 1


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_switches_that_add_up_are_not_faster_than_light_either(world):
    machine = fabric(world, "h100x8-ib400", 450, 50, sharp=True)
    runs = [oracle.collnet_direct_all_reduce] if world.nodes > 1 else [oracle.nvls_all_reduce]
    runs += [oracle.nvls_tree_all_reduce] if world.per_node > 1 else []
    for run in runs:
        assert light_ns(machine, "all_reduce", world) <= full_speed_ns(run(world), 450, 50) + 1


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize(
    ("op", "share"),
    [
        ("all_reduce", lambda n: Fraction(2 * (n - 1), n)),
        ("all_gather", lambda n: Fraction(n - 1, n)),
        ("reduce_scatter", lambda n: Fraction(n - 1, n)),
        ("all_to_all", lambda n: Fraction(n - 1, n)),
        ("broadcast", lambda n: Fraction(1)),
        ("reduce", lambda n: Fraction(1)),
        ("gather", lambda n: Fraction(n - 1, n)),
        ("scatter", lambda n: Fraction(n - 1, n)),
        ("send", lambda n: Fraction(1)),
    ],
)
def test_light_in_one_host_is_what_must_be_sent_at_the_links_rate(op, share, n):
    world = World(1, 2 if op == "send" else n)
    machine = fabric(world, "a100x8-ib200", 300, 25)
    assert light_ns(machine, op, world) == pytest.approx(float(share(world.ranks)) * S / 300, rel=1e-9, abs=1)


def test_light_needs_no_latency_and_no_algorithm():
    found = collective_cost(load_fabric("h100x8-ib400"), "all_reduce", 0, one_node(8))
    assert found is not None
    assert found.light_ns == 0 < found.time_ns


UNEVEN = [
    Placement(9, 2, 8, fewest_ranks=1),
    Placement(17, 3, 8, fewest_ranks=1),
    Placement(6, 2, 4, fewest_ranks=2),
    Placement(11, 4, 8, fewest_ranks=1),
    Placement(29, 4, 8, fewest_ranks=5),
]
EVEN = [
    *(one_node(n) for n in (2, 3, 4, 8)),
    *(Placement(k * g, k, g, sharing) for k in (2, 3, 16) for g in (1, 4, 8) for sharing in (1, 4)),
]


@pytest.mark.parametrize("at", [*EVEN, *UNEVEN], ids=lambda at: f"{at.ranks}on{at.nodes}x{at.sharing}")
@pytest.mark.parametrize("op", [op for op in OPS if op != "barrier"])
def test_no_candidate_of_a_shipped_fabric_is_faster_than_light(op, at):
    """Before any bound is laid on it; where one is, the shares that a library reaches are wrong."""
    if op in ("send", "recv") and at.ranks != 2:
        return
    for machine in known_fabrics():
        pricing = Pricing(replace(machine, curves=()))
        if machine.intra is None or not pricing.knows(op, at):
            continue
        taken = float(pricing.model(op, at).choose(np.array([float(S)])).best_ns[0])
        assert taken >= S * pricing.light_ns_per_byte(op, at), machine.name


ELSEWHERE = ("nvls", "nvlstree", "pat")
"""Algorithms of which other fabrics or placements have constants or a use."""


@pytest.mark.parametrize("at", UNEVEN, ids=lambda at: f"{at.ranks}on{at.nodes}")
@pytest.mark.parametrize("op", sorted(RING_LIKE))
def test_no_algorithm_of_any_library_is_faster_than_light_on_uneven_hosts(op, at):
    for name in ("h100x8-ib400", "aws-p5", "mi300x8-roce400", "a100x8-ib200"):
        machine = machine_of(load_fabric(name), at, load_library("gloo"))
        assert machine is not None
        known = candidates(machine, op, tuple(each for each in ALGORITHMS if each not in ELSEWHERE))
        assert known
        light = light_ns_per_byte(machine, op)
        for found in known:
            assert found.ns_per_byte >= light * (1 - 1e-12), found.algorithm


def test_a_share_above_what_physics_allows_does_not_hide():
    base = fabric(World(2, 8), "h100x8-ib400", 450, 50)
    assert base.inter is not None
    boast = {"ring": Quantity(1.5, "made for a test", "verified")}
    machine = replace(
        base, intra=replace(base.intra, reached=boast), inter=replace(base.inter, reached=boast)
    )
    found = collective_cost(machine, "all_gather", S, Placement(16, 2, 8))
    honest = collective_cost(base, "all_gather", S, Placement(16, 2, 8))
    assert found is not None
    assert honest is not None
    assert found.light_ns == honest.light_ns
    assert found.light_ns <= found.low_ns <= found.time_ns <= found.high_ns
    assert (found.time_ns, found.floor_ns) == pytest.approx((found.light_ns, found.light_ns), abs=1)
    assert honest.time_ns > found.time_ns


def test_a_lone_host_of_few_ranks_is_the_end_of_both_trees():
    """8+8+8+1: it sends the message once, up and down together; of 8+1+1+1 one may be inside a tree."""
    machine = load_fabric("h100x8-ib400")

    def tree_ns(at: Placement) -> float:
        made = machine_of(machine, at)
        assert made is not None
        trees = candidates(made, "all_reduce", ("tree",))
        return min(found.ns_per_byte for found in trees)

    lone, several = tree_ns(Placement(25, 4, 8, fewest_ranks=1)), tree_ns(Placement(11, 4, 8, fewest_ranks=1))
    assert several == pytest.approx(2 * lone)
    assert tree_ns(Placement(17, 3, 8, fewest_ranks=1)) == pytest.approx(1.5 * lone)
