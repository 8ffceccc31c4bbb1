"""The simulated algorithms against their published closed forms: steps, and bytes each rank sends.

The forms are those of the sources in `algorithms_oracle`; they hold for every number of ranks unless a
row says otherwise. The cost model is compared with the same simulation in `test_algorithm_costs`.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.analyzers import algorithms_oracle as oracle
from tests.unit.analyzers.simulated import Machine, World

WORLDS = [
    World(*shape)
    for shape in [(1, 2), (1, 3), (1, 8), (2, 1), (2, 4), (3, 2), (3, 3), (4, 4), (5, 1), (7, 3)]
]
worlds = st.builds(World, st.integers(1, 7), st.integers(1, 5))


def log2(n: int) -> int:
    """Return log2, rounded up."""
    return (n - 1).bit_length()


def share(top: int, bottom: int) -> Fraction:
    return Fraction(top, bottom)


@given(worlds)
@settings(deadline=None, max_examples=30)
def test_rings_send_the_same_from_every_rank_and_cross_each_card_alike(world):
    n, g, k = world.ranks, world.per_node, world.nodes
    for run, turns in (
        (oracle.ring_all_reduce, 2),
        (oracle.ring_all_gather, 1),
        (oracle.ring_reduce_scatter, 1),
    ):
        took = run(world)
        assert took.steps == turns * (n - 1)
        assert set(took.sent) == {turns * share(n - 1, n)}
        assert set(took.net) == {turns * share(n - 1, n * g) if k > 1 else 0}


@given(worlds, st.integers(1, 4), st.data())
@settings(deadline=None, max_examples=30)
def test_a_chain_in_m_pieces_takes_n_minus_2_plus_m_steps_and_sends_the_message_once(world, m, data):
    n, g = world.ranks, world.per_node
    root = data.draw(st.integers(0, n - 1))
    for run in (oracle.chain_broadcast, oracle.chain_reduce):
        took = run(world, chunks=m, root=root)
        assert took.steps == (n - 2 + m if n > 1 else 0)
        assert took.most == (n > 1)
        assert sum(took.sent) == n - 1
        assert max(took.net) == (share(1, g) if world.nodes > 1 else 0)


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_two_trees_send_at_most_twice_the_message_over_a_hosts_cards(world):
    g, k = world.per_node, world.nodes
    took = oracle.double_tree_all_reduce(world)
    assert took.steps == 2 * (g - 1 + log2(k))
    assert set(took.near) == {2 * share(g - 1, g)}
    assert sum(took.net) == 2 * (k - 1)
    # Of two hosts each is root of one tree and leaf of the other; of three one is inside once.
    assert max(took.net) * g == {1: 0, 2: 1, 3: share(3, 2)}.get(k, 2)


@pytest.mark.parametrize("nodes", range(1, 70))
def test_no_host_is_inside_both_trees(nodes):
    trees = oracle.two_trees(nodes)
    below = [[list(tree.values()).count(host) for host in range(nodes)] for tree in trees]
    assert all(len(tree) == nodes - 1 and oracle.depth(tree) == log2(nodes) for tree in trees)
    assert all(max(children, default=0) <= 2 for children in below)
    assert all(one == 0 or other == 0 or one + other == 2 for one, other in zip(*below, strict=True))


@pytest.mark.parametrize("n", range(2, 20))
def test_a_switch_that_adds_up_takes_n_plus_1_nths_of_the_message_from_each_rank(n):
    took = oracle.nvls_all_reduce(World(1, n))
    assert took.steps == 1
    assert set(took.near) == {1 + share(1, n)} == set(took.near_in)
    scattered, gathered = oracle.nvls_reduce_scatter(World(1, n)), oracle.nvls_all_gather(World(1, n))
    assert (scattered.steps, set(scattered.near), set(scattered.near_in)) == (1, {1}, {share(1, n)})
    assert (gathered.steps, set(gathered.near), set(gathered.near_in)) == (1, {share(1, n)}, {1})


@pytest.mark.parametrize("world", [world for world in WORLDS if world.per_node > 1], ids=str)
def test_switches_under_two_trees(world):
    g, k = world.per_node, world.nodes
    took = oracle.nvls_tree_all_reduce(world)
    assert took.steps == 1 + 2 * log2(k)
    assert set(took.near) == {1 + share(1, g)}
    assert sum(took.net) == 2 * (k - 1)


@pytest.mark.parametrize("world", [world for world in WORLDS if world.nodes > 1], ids=str)
def test_a_network_that_adds_up_takes_the_message_once_from_each_host(world):
    g = world.per_node
    direct, chain = oracle.collnet_direct_all_reduce(world), oracle.collnet_chain_all_reduce(world)
    assert direct.steps == 1 + (2 if g > 1 else 0)
    assert chain.steps == 1 + 2 * (g - 1)
    for took in (direct, chain):
        assert set(took.net) == {share(1, g)} == set(took.net_in)
        assert set(took.near) == {2 * share(g - 1, g)}


@pytest.mark.parametrize("n", range(1, 34))
def test_doubling_and_halving(n):
    doubling = oracle.recursive_doubling_all_reduce(World(1, n))
    halving = oracle.halving_doubling_all_reduce(World(1, n))
    if n & (n - 1) == 0:
        assert (doubling.steps, doubling.most) == (log2(n), log2(n))
        assert (halving.steps, halving.most) == (2 * log2(n), 2 * share(n - 1, n))
    else:  # the ranks beyond a power of two first add theirs to another's, and get the result at the end
        power = 1 << (n.bit_length() - 1)
        assert (doubling.steps, doubling.most) == (log2(power) + 2, log2(power) + 1)
        assert (halving.steps, halving.most) == (2 * log2(power) + 2, 2 * share(power - 1, power) + 1)


@pytest.mark.parametrize("n", range(1, 34))
def test_logarithmic_gathers_send_what_a_ring_does_in_fewer_steps(n):
    for run in (oracle.bruck_all_gather, oracle.pat_all_gather, oracle.pat_reduce_scatter):
        took = run(World(n, 1))
        assert took.steps == log2(n)
        assert set(took.net) == {share(n - 1, n)}


@pytest.mark.parametrize("n", range(1, 34))
def test_binomial_trees(n):
    spread, joined = oracle.binomial_broadcast(World(1, n)), oracle.binomial_reduce(World(1, n))
    assert spread.steps == joined.steps == log2(n)
    assert spread.most == log2(n)  # the root sends in every round
    assert joined.most == (n > 1)


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_two_levels_keep_most_off_the_network(world):
    n, g, k = world.ranks, world.per_node, world.nodes
    took = oracle.two_level_all_reduce(world)
    assert took.steps == 2 * (g - 1) + 2 * (k - 1)
    assert set(took.near) == {2 * share(g - 1, g)}
    assert set(took.net) == {2 * share(k - 1, k * g)}
    for run in (oracle.two_level_all_gather, oracle.two_level_reduce_scatter):
        took = run(world)
        assert took.steps == g - 1 + k - 1
        assert set(took.near) == {share(g - 1, g)}
        assert set(took.net) == {share(k - 1, n)}


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_direct_transfers(world):
    n, g = world.ranks, world.per_node
    pairwise = oracle.pairwise_all_to_all(world)
    assert pairwise.steps == n - 1
    assert (set(pairwise.near), set(pairwise.net)) == ({share(g - 1, n)}, {share(n - g, n)})
    gather, scatter = oracle.direct_gather(world), oracle.direct_scatter(world)
    assert gather.steps == scatter.steps == 1
    assert (gather.near_in[0], gather.net_in[0]) == (share(g - 1, n), share(n - g, n))
    assert (scatter.near[0], scatter.net[0]) == (share(g - 1, n), share(n - g, n))
    sent = oracle.direct_send(world)
    assert (sent.steps, sent.most) == (1, 1)
    assert sum(sent.net) == (world.nodes > 1)


class TestTheMachine:
    """The simulation must refuse what is wrong, or its counts mean nothing."""

    def machine(self) -> Machine:
        machine = Machine(World(2, 2))
        for rank in range(4):
            machine.give(rank, "all", Fraction(1))
        return machine

    def test_a_value_cannot_be_added_twice(self):
        machine = self.machine()
        machine.round([((0,), (1,), "all"), ((2,), (3,), "all")])
        machine.round([((1,), (2,), "all")])
        with pytest.raises(AssertionError, match="twice"):
            machine.round([((3,), (2,), "all")])

    def test_a_switch_cannot_add_a_value_twice(self):
        machine = self.machine()
        machine.round([((0,), (1,), "all")])
        with pytest.raises(AssertionError, match="twice"):
            machine.round([((0, 1), (0,), "all")])

    def test_what_is_not_there_cannot_be_sent(self):
        with pytest.raises(KeyError):
            self.machine().round([((0,), (1,), "other")])

    def test_a_result_that_lacks_a_rank_is_refused(self):
        machine = self.machine()
        machine.round([((0,), (1,), "all")])
        with pytest.raises(AssertionError):
            machine.all_have([1], ["all"], range(4))

    def test_messages_of_a_round_carry_what_was_held_before_it(self):
        machine = self.machine()
        machine.round([((0,), (1,), "all"), ((1,), (2,), "all")])
        assert machine.has(2, "all") == {1, 2}

    def test_links_are_told_apart(self):
        machine = self.machine()
        machine.round([((0,), (1,), "all"), ((3,), (0,), "all")])
        took = machine.traffic(machine.rounds)
        assert (took.near, took.net) == ((1, 0, 0, 0), (0, 0, 0, 1))
        assert (took.near_in, took.net_in) == ((0, 1, 0, 0), (1, 0, 0, 0))
