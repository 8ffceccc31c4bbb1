"""How many ranks share a node, from the variables of launchers."""

from __future__ import annotations

import pytest

from shardtoll.profiler.live.nodes import ranks_per_node


def torchrun(rank: int, local: int) -> dict[str, str]:
    return {
        "LOCAL_WORLD_SIZE": str(local),
        "LOCAL_RANK": str(rank % local),
        "GROUP_RANK": str(rank // local),
    }


@pytest.mark.parametrize("rank", range(4))
def test_torchrun_tells_it(rank: int) -> None:
    assert ranks_per_node(rank, 4, torchrun(rank, 2)) == 2
    assert ranks_per_node(rank, 4, torchrun(rank, 4)) == 4


def test_other_launchers_number_nodes_by_another_name() -> None:
    assert ranks_per_node(3, 4, {"LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}) == 2


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"LOCAL_WORLD_SIZE": "2"},
        {"GROUP_RANK": "1"},
        torchrun(3, 2) | {"GROUP_RANK": "0"},
        torchrun(3, 2) | {"LOCAL_RANK": "0"},
        torchrun(3, 2) | {"LOCAL_WORLD_SIZE": "3"},
        torchrun(3, 2) | {"LOCAL_WORLD_SIZE": "0"},
        torchrun(3, 2) | {"LOCAL_WORLD_SIZE": "two"},
        torchrun(3, 2) | {"GROUP_RANK": "-1"},
    ],
)
def test_what_does_not_fit_this_rank_is_not_believed(variables: dict[str, str]) -> None:
    assert ranks_per_node(3, 4, variables) is None
