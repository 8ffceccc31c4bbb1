"""The model's steps and bytes of every algorithm against ranks that really pass the pieces on.

A candidate's shares are means over a host's ranks; the simulation says what each rank sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.analyzers.roofline import Placement, collective_cost, load_fabric
from shardtoll.analyzers.roofline.machines.fabric import Fabric
from shardtoll.analyzers.roofline.machines.quantity import Quantity
from shardtoll.analyzers.roofline.model.candidate import Candidate
from shardtoll.analyzers.roofline.model.model import ALGORITHMS, candidates, machine_of
from shardtoll.analyzers.roofline.model.tree import end_of_the_trees, most_of_a_host
from tests.unit.analyzers import algorithms_oracle as oracle
from tests.unit.analyzers.simulated import Traffic, World


@dataclass(frozen=True)
class Row:
    """One algorithm of one op: how to run it, and where the model's numbers are meant to be its own."""

    op: str
    run: Callable[[World], Traffic]
    fits: Callable[[World], bool] = lambda world: True
    """Worlds in which a library has this algorithm."""
    exact: Callable[[World], bool] = lambda world: True
    """Worlds for which the published form holds; elsewhere the model may say less, not more than is real."""


def several_hosts(world: World) -> bool:
    return world.nodes > 1


def several_on_several(world: World) -> bool:
    return world.nodes > 1 and world.per_node > 1


def one_a_host(world: World) -> bool:
    return world.nodes > 1 and world.per_node == 1


def power_of_two(world: World) -> bool:
    return world.per_node & (world.per_node - 1) == 0 and world.nodes & (world.nodes - 1) == 0


def one_level(world: World) -> bool:
    return world.nodes == 1 or world.per_node == 1


ROWS = {
    "ring": [
        Row("all_reduce", oracle.ring_all_reduce),
        Row("all_gather", oracle.ring_all_gather),
        Row("reduce_scatter", oracle.ring_reduce_scatter),
    ],
    "chain": [Row("broadcast", oracle.chain_broadcast), Row("reduce", oracle.chain_reduce)],
    "tree": [Row("all_reduce", oracle.double_tree_all_reduce)],
    "binomial": [
        Row("broadcast", oracle.binomial_broadcast, exact=power_of_two),
        Row("reduce", oracle.binomial_reduce, exact=power_of_two),
    ],
    "nvls": [
        Row("all_reduce", oracle.nvls_all_reduce, fits=lambda world: world.nodes == 1 and world.per_node > 1)
    ],
    "nvlstree": [Row("all_reduce", oracle.nvls_tree_all_reduce, fits=several_on_several)],
    "collnet": [Row("all_reduce", oracle.collnet_direct_all_reduce, fits=several_hosts)],
    "pat": [
        Row("all_gather", oracle.pat_all_gather, fits=one_a_host),
        Row("reduce_scatter", oracle.pat_reduce_scatter, fits=one_a_host),
    ],
    "pairwise": [Row("all_to_all", oracle.pairwise_all_to_all)],
    "direct": [Row("gather", oracle.direct_gather), Row("scatter", oracle.direct_scatter)],
    "hierarchical": [Row("all_reduce", oracle.two_level_all_reduce, fits=several_on_several)],
    "recursive_doubling": [Row("all_reduce", oracle.recursive_doubling_all_reduce, exact=power_of_two)],
    "halving_doubling": [Row("all_reduce", oracle.halving_doubling_all_reduce, exact=power_of_two)],
    "bruck": [Row("all_gather", oracle.bruck_all_gather, exact=one_level)],
}
CASES = [(name, row) for name, rows in ROWS.items() for row in rows]


def fabric(world: World) -> Fabric:
    """Return a machine on which all algorithms could run: its switches add, inside and between hosts."""
    here = Quantity(float(world.per_node), "made for a test", "derived")
    return replace(load_fabric("h100x8-ib400"), ranks_per_node=here, sharp=True)


def modelled(algorithm: str, op: str, world: World) -> tuple[Candidate, ...]:
    at = Placement(world.ranks, world.nodes, world.per_node)
    machine = machine_of(fabric(world), at)
    assert machine is not None
    return candidates(machine, op, (algorithm,))


def mean(shares: tuple[Fraction, ...]) -> Fraction:
    return sum(shares, Fraction(0)) / len(shares)


def taken(row: Row, world: World) -> tuple[int, Fraction, Fraction]:
    """Return steps and mean near and net shares; of a gather or scatter what its root gets or sends."""
    took = row.run(world)
    if row.op == "gather":
        return took.steps, took.near_in[0], took.net_in[0]
    if row.op == "scatter":
        return took.steps, took.near[0], took.net[0]
    return took.steps, mean(took.near), mean(took.net)


def test_every_algorithm_of_the_model_is_simulated():
    assert set(ROWS) == set(ALGORITHMS)


@pytest.mark.parametrize(("algorithm", "row"), CASES, ids=[f"{name}-{row.op}" for name, row in CASES])
@given(
    world=st.builds(World, st.integers(1, 9), st.integers(1, 8)).filter(lambda world: 1 < world.ranks < 40)
)
@settings(deadline=None, max_examples=25)
def test_steps_and_bytes_are_those_of_the_simulated_ranks(algorithm, row, world):
    found = modelled(algorithm, row.op, world)
    assert bool(found) == row.fits(world)
    if not found:
        return
    steps, near, net = taken(row, world)
    for candidate in found:
        told = (candidate.steps, candidate.near_share, candidate.net_share)
        if row.exact(world):
            assert told == (steps, near, net)
        else:
            assert candidate.steps <= steps
            assert candidate.near_share + candidate.net_share <= row.run(world).most


@pytest.mark.parametrize("nodes", range(2, 40))
def test_the_busiest_host_of_two_trees(nodes):
    took = oracle.double_tree_all_reduce(World(nodes, 1))
    assert most_of_a_host(nodes) == max(took.net)
    assert [end_of_the_trees(nodes)] * 2 == [took.net[0], took.net[-1]]


@pytest.mark.parametrize("shape", [(1, 2), (1, 3), (1, 8), (2, 8), (3, 4), (4, 1), (5, 3)], ids=str)
@pytest.mark.parametrize("size", [1, 1000, 12_345_677, 1 << 30])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_a_costs_bytes_are_those_of_the_algorithm_it_names(op, size, shape):
    world = World(*shape)
    cost = collective_cost(fabric(world), op, size, Placement(world.ranks, world.nodes, world.per_node))
    assert cost is not None
    (row,) = (row for row in ROWS[cost.algorithm] if row.op == op)
    steps, near, net = taken(row, world)
    assert cost.steps == steps
    assert cost.near_bytes == math.ceil(near * size)
    assert cost.net_bytes == math.ceil(net * size)
    sends = 1 if op == "broadcast" else row.run(world).most
    assert (near + net) * size <= cost.wire_bytes <= math.ceil(sends * size)


@pytest.mark.parametrize("op", ["send", "recv"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_message_between_two_ranks_crosses_one_link_once(op, nodes):
    world = World(nodes, 2 // nodes)
    took = oracle.direct_send(world)
    (candidate,) = modelled("direct", op, world)
    assert (candidate.steps, candidate.near_share, candidate.net_share) == (1, sum(took.near), sum(took.net))


def test_a_barrier_is_an_all_reduce_of_nothing():
    at = Placement(16, 2, 8)
    barrier = collective_cost(load_fabric("h100x8-ib400"), "barrier", None, at)
    empty = collective_cost(load_fabric("h100x8-ib400"), "all_reduce", 0, at)
    assert barrier is not None
    assert barrier == empty
    assert (barrier.wire_bytes, barrier.near_bytes, barrier.net_bytes) == (0, 0, 0)
