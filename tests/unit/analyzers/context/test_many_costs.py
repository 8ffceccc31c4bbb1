"""Many message sizes priced at once cost what each of them costs alone, and say which guesses were used."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.roofline import (
    UNKNOWN,
    Placement,
    collective_cost,
    collective_costs,
    known_fabrics,
    load_fabric,
    one_node,
)
from shardtoll.ledger.records.volume import OPS
from tests.unit.analyzers.fabrics import MEASURED_GLOO, timed
from tests.unit.analyzers.ledgers import ledger, on_ranks

EIGHT = load_fabric("h100x8-ib400")
MEASURED = timed(EIGHT, "all_to_all", Placement(16, 2, 8), 1 << 12, 1 << 16, 1 << 24)
NAMES = (
    "h100x8-ib400",
    "aws-p5",
    "gcp-a3-high",
    "mi300x8",
    "loopback-gloo",
    "gb200-nvl72-ib400",
    "pcie-gen4",
)
PLACES = (
    one_node(1),
    one_node(2),
    one_node(8),
    Placement(2, 2, 1),
    Placement(16, 2, 8),
    Placement(64, 8, 8, 4),
)
SIZES = st.one_of(st.integers(0, 1 << 40), st.none())


@given(
    fabric=st.sampled_from([*map(load_fabric, NAMES), MEASURED, UNKNOWN]),
    op=st.sampled_from([*OPS, "all_reduce_v9"]),
    at=st.sampled_from([*PLACES, Placement(9, 2, 8, fewest_ranks=1), None]),
    sizes=st.lists(SIZES, max_size=40),
)
@settings(deadline=None, max_examples=150)
def test_many_sizes_cost_to_the_last_bit_what_each_costs_alone(fabric, op, at, sizes):
    assert collective_costs(fabric, op, sizes, at) == [
        collective_cost(fabric, op, size, at) for size in sizes
    ]


def test_sizes_between_measured_ones_are_measured_at_once_too():
    at = Placement(16, 2, 8)
    found = collective_costs(MEASURED, "all_to_all", [5000, 70_000, 1 << 28], at)
    assert [cost.basis for cost in found if cost] == ["measured"] * 3


@pytest.mark.parametrize("rank", ["wire_bytes", "near_bytes", "net_bytes"])
def test_bytes_are_exact_where_floats_are_not(rank):
    """(n-g)/n of 2^60 + 1 bytes, rounded up."""
    cost = collective_cost(EIGHT, "all_to_all", (1 << 60) + 1, Placement(24, 3, 8))
    assert cost is not None
    share = {"wire_bytes": 23, "near_bytes": 7, "net_bytes": 16}[rank]
    assert getattr(cost, rank) == -(-share * ((1 << 60) + 1) // 24)


def guesses(name: str, op: str, at: Placement, size: int = 1 << 30) -> tuple[str, ...]:
    cost = collective_cost(load_fabric(name), op, size, at)
    assert cost is not None
    return cost.guesses


def test_a_guessed_constant_is_named_by_the_op_that_used_it_alone():
    two = Placement(16, 2, 8)
    name = "nccl net_share.pairwise.efa"
    assert name in guesses("aws-p5", "all_to_all", two)
    assert name not in guesses("aws-p5", "all_gather", two)
    assert name not in guesses("aws-p5", "all_to_all", one_node(8))
    assert name not in guesses("h100x8-ib400", "all_to_all", two)


def test_a_guess_of_an_algorithm_that_was_not_chosen_is_not_named():
    at, name = Placement(64, 8, 8), "nccl net_share.collnet.default"
    cost = collective_cost(replace(EIGHT, sharp=True), "all_reduce", 1 << 30, at)
    assert cost is not None
    assert cost.algorithm == "collnet"
    assert name in cost.guesses
    assert name not in guesses("h100x8-ib400", "all_reduce", at)


def test_what_was_measured_stands_on_no_guess():
    at = Placement(16, 2, 8)
    machine = timed(load_fabric("aws-p5"), "all_to_all", at, 1 << 12, 1 << 24)
    measured = collective_cost(machine, "all_to_all", 1 << 16, at)
    assert measured is not None
    assert measured.guesses == ()


def test_gloo_which_nobody_learned_names_what_it_used():
    found = guesses("loopback-gloo", "all_reduce", one_node(4))
    assert any(name.startswith("gloo near_hop_us.") for name in found)
    assert not any("pairwise" in name for name in found)


def test_a_guessed_latency_is_no_guessed_rate():
    costs = [
        collective_cost(load_fabric(name), "all_to_all", 1 << 30, Placement(16, 2, 8))
        for name in ("h100x8-ib400", "aws-p5")
    ]
    assert [cost.guessed_rate for cost in costs if cost] == [False, True]
    assert all(cost.guesses for cost in costs if cost)


def test_shipped_fabrics_have_no_name_of_a_guess_twice():
    for fabric in known_fabrics():
        for op in OPS:
            for at in (one_node(2), Placement(2, 2, 1)):
                cost = collective_cost(fabric, op, 1 << 20, at)
                assert cost is None or len(set(cost.guesses)) == len(cost.guesses)


def test_every_row_of_a_run_has_the_floor_of_its_own_size():
    """Sizes that never come twice, of two ops, in any order."""
    sizes = [(1 << 20) + 977 * (nth * 7 % 50) for nth in range(50)]
    rows = [
        row
        for seq, size in enumerate(sizes)
        for row in on_ranks(range(2), seq=seq, message_bytes=size, op=("all_reduce", "all_gather")[seq % 2])
    ]
    context = make_context(ledger(rows), MEASURED_GLOO)
    assert len(context.costs) == 50
    for row in context.collectives.itertuples():
        cost = collective_cost(MEASURED_GLOO, row.op, int(row.message_bytes), one_node(2))
        assert cost is not None
        assert (row.floor_ns, row.light_ns) == (cost.floor_ns, cost.light_ns)
        assert context.costs[int(row.cost_id)] == cost
