"""Large groups are listed once, not once for each of their ranks."""

from __future__ import annotations

from shardtoll.analyzers.context.context import make_context
from shardtoll.ledger import Group
from tests.unit.analyzers.fabrics import ROUND
from tests.unit.analyzers.ledgers import collective, ledger, run_of


def test_the_ranks_of_a_group_share_one_list() -> None:
    world = tuple(range(16))
    groups = [Group("all", world), Group("even", world[::2]), Group("odd", world[1::2])]
    rows = [collective(rank=0, group="all")]
    context = make_context(ledger(rows, run=run_of(16, ranks_seen=(0,)), groups=groups), ROUND)
    assert context.members["odd", 3] == world[1::2]
    assert context.members["even", 2] == world[::2]
    assert len(context.members) == 32
    assert len({id(ranks) for ranks in context.members.values()}) == 3
