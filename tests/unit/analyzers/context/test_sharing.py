"""Which groups send over a node's cards at once: by the mesh, by what is on record, by the times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.context.context import Context, make_context
from shardtoll.analyzers.context.mesh_layouts import dim_of
from shardtoll.analyzers.context.sharing import Alike
from shardtoll.analyzers.roofline import Placement, collective_cost
from shardtoll.ledger import Collective, Group
from tests.unit.analyzers.fabrics import ROUND, quantity
from tests.unit.analyzers.ledgers import MS, collective, ledger, on_ranks, run_of


def groups(shape: tuple[int, ...], at: int) -> list[tuple[int, ...]]:
    """The groups of one dimension of a mesh as init_device_mesh makes it."""
    ranks = np.arange(int(np.prod(shape))).reshape(shape)
    return [tuple(map(int, row)) for row in np.moveaxis(ranks, at, -1).reshape(-1, shape[at])]


def context(
    shape: tuple[int, ...],
    per_host: int,
    dims: Iterable[int] = (0,),
    start: Callable[[int, int], int | None] = lambda dim, group: MS,
    seen: tuple[int, ...] | None = None,
    drop: Callable[[int, int], bool] = lambda dim, group: False,
    **given: Any,
) -> Context:
    """Every group of the dimensions runs one collective of 1 ms from `start(dim, group)`."""
    world = int(np.prod(shape))
    seen = tuple(range(world)) if seen is None else seen
    rows: list[Collective] = []
    known = []
    for dim in dims:
        for number, ranks in enumerate(groups(shape, dim)):
            known.append(Group(f"g{dim}", ranks, mesh_dim=f"d{dim}"))
            if drop(dim, number):
                continue
            at = start(dim, number)
            times = {"start_ns": at, "duration_ns": None if at is None else MS}
            rows += on_ranks(
                ranks, group=f"g{dim}", mesh_dim=f"d{dim}", issue_ns=at, **(times | {"exposed_ns": 0} | given)
            )
    rows = [row for row in rows if row.rank in seen]
    run = run_of(world, ranks_per_host=per_host, ranks_seen=seen, hosts=())
    return make_context(
        ledger(rows, run=run, groups=known), replace(ROUND, ranks_per_node=quantity(per_host))
    )


def sharing(made: Context) -> list[int]:
    ids = made.collectives["cost_id"].dropna().unique()
    return sorted({made.places[int(at)].sharing for at in ids})


@pytest.mark.parametrize(
    ("shape", "per_host", "dim", "wanted"),
    [
        ((2, 8), 8, 0, 8),  # 8 data parallel groups, a rank of each on every node
        ((4, 4), 8, 0, 4),  # two ranks of each of the 4 groups on a node
        ((4, 8), 8, 0, 8),
        ((16,), 8, 0, 1),  # one group of all
        ((2, 8), 8, 1, 1),  # inside a node: the cards are not used
        ((2, 2, 4), 4, 0, 4),  # node = one tp group; outermost and
        ((2, 2, 4), 4, 1, 4),  # middle dimension alike
    ],
)
def test_by_the_mesh(shape: tuple[int, ...], per_host: int, dim: int, wanted: int) -> None:
    assert sharing(context(shape, per_host, (dim,))) == [wanted]


def test_groups_that_follow_each_other_share_nothing() -> None:
    apart = context((2, 4), 4, start=lambda dim, group: group * 2 * MS)
    assert sharing(apart) == [1]
    two_by_two = context((2, 4), 4, start=lambda dim, group: group // 2 * 2 * MS)
    assert sharing(two_by_two) == [2]


def test_without_times_the_mesh_decides() -> None:
    assert sharing(context((2, 4), 4, start=lambda dim, group: None)) == [4]


def test_siblings_that_do_nothing_do_not_share() -> None:
    assert sharing(context((2, 4), 4, drop=lambda dim, group: group > 0)) == [1]


def test_ranks_that_were_not_seen_are_taken_to_do_the_same() -> None:
    assert sharing(context((2, 4), 4, seen=(0,), start=lambda dim, group: None)) == [4]
    assert sharing(context((2, 4), 4, seen=(0, 1), drop=lambda dim, group: group == 1)) == [3]


def test_a_slow_group_has_the_company_of_its_siblings() -> None:
    made = context((2, 4), 4)
    rows = [
        {**row, "duration_ns": 9 * MS} if row["rank"] % 4 == 3 else row
        for row in made.ledger.tables["collectives"].to_pylist()
    ]
    slow = make_context(
        ledger([Collective(**row) for row in rows], run=made.ledger.run, groups=made.ledger.groups), ROUND
    )
    assert sharing(slow) == [4]


def test_messages_between_stages_share_by_the_ranks_that_send() -> None:
    def both(own: int, peer: int) -> list[Collective]:
        shared = {"group": "pp", "group_size": 2, "mesh_dim": "pp", "seq": 1}
        return [
            collective(rank=own, root=peer, op="send", **shared),
            collective(rank=peer, root=own, op="recv", **shared),
        ]

    pairs = [(0, 4), (1, 5), (2, 6)]
    known = [Group("pp", pair, mesh_dim="pp") for pair in [*pairs, (3, 7)]]
    rows = [row for pair in pairs for row in both(*pair)]
    made = make_context(ledger(rows, run=run_of(8, ranks_per_host=4, hosts=()), groups=known), ROUND)
    assert sharing(made) == [3]


def test_half_a_group_more_is_rounded_but_no_lower_bound_counts_it() -> None:
    """Groups of 1 ms half a millisecond apart: 1.5 at once."""
    made = context((2, 4), 4, start=lambda dim, group: MS + group // 2 * 4 * MS + group % 2 * MS // 2)
    (at,) = {made.places[int(at)] for at in made.collectives["cost_id"].dropna().unique()}
    assert (at.sharing, at.surely_sharing) == (2, 1)
    assert ROUND.inter is not None
    one_card = replace(ROUND, inter=replace(ROUND.inter, node_gbps=quantity(2), cards=quantity(1)))
    cost, both, one = (
        collective_cost(one_card, "all_reduce", 1 << 24, each)
        for each in (at, replace(at, surely_sharing=None), replace(at, sharing=1, surely_sharing=None))
    )
    assert cost is not None
    assert both is not None
    assert one is not None
    assert (cost.time_ns, cost.high_ns) == (both.time_ns, both.high_ns)
    assert cost.light_ns == one.light_ns == pytest.approx(both.light_ns / 2, abs=1)


def test_no_more_groups_are_sure_than_share() -> None:
    with pytest.raises(ValueError, match="the least that share"):
        Placement(2, 2, 1, sharing=2, surely_sharing=3)


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    per_host=st.integers(1, 6),
    chosen=st.sets(st.integers(0, 63)),
    seen=st.sets(st.integers(0, 63)),
    odd=st.lists(st.permutations(range(4)), max_size=2),
)
def test_groups_on_a_node_are_counted_as_one_by_one(
    shape: list[int], per_host: int, chosen: set[int], seen: set[int], odd: list[list[int]]
) -> None:
    world = int(np.prod(shape))
    every = [each for at in range(len(shape)) for each in groups(tuple(shape), at)]
    every += [tuple(order) for order in odd if world >= 4]
    doing = frozenset(number for number in chosen if number < len(every))
    job = Alike(
        every, world, per_host, frozenset(rank for rank in seen if rank < world), {"all_reduce": doing}, {}
    )
    for number, mine in enumerate(every):
        dim, most = dim_of(mine), 1
        siblings = (
            {tuple(range(at, at + dim.size * dim.stride, dim.stride)) for at in range(world)} if dim else ()
        )
        for node in {rank // per_host for rank in mine}:
            here = [
                ranks
                for ranks in siblings
                if dim_of(ranks) == dim
                and ranks[-1] < world
                and any(rank // per_host == node for rank in ranks)
                and (ranks in {every[each] for each in doing} or job.seen.isdisjoint(ranks))
            ]
            most = max(most, len(here))
        fits = dim is not None and world % (dim.size * dim.stride) == 0
        assert job.groups(number, "all_reduce") == (most if fits else 1)
