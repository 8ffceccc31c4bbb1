"""Which ranks share a host."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.roofline import Placement, load_fabric, one_node, place, ranks_per_host
from tests.unit.analyzers.fabrics import ROUND
from tests.unit.analyzers.ledgers import run_of


@pytest.mark.parametrize(
    ("ranks", "per_host", "expected"),
    [
        ((0, 1, 2, 3), 4, one_node(4)),
        ((0, 1, 2, 3), 2, Placement(4, 2, 2)),
        ((0, 4, 8, 12), 4, Placement(4, 4, 1)),
        ((3, 4), 4, Placement(2, 2, 1)),
        ((0, 1, 4), 4, Placement(3, 2, 2)),
        ((7,), None, one_node(1)),
        ((0, 1), None, None),
    ],
)
def test_placement_follows_consecutive_ranks(ranks, per_host, expected):
    assert place(ranks, per_host) == expected


def test_a_whole_run_tells_its_ranks_per_host():
    assert ranks_per_host(run_of(8, ranks_per_host=4, hosts=("a", "b")), ROUND) == 4


def test_a_run_with_missing_ranks_is_not_believed():
    # Three of four seen on one host: merge counts three a host, but nobody moved house.
    run = run_of(4, ranks_seen=(0, 1, 2), ranks_per_host=3)
    assert ranks_per_host(run, ROUND) == 4
    assert ranks_per_host(run, load_fabric("h100x8-ib400")) == 8


def test_several_hosts_of_unknown_width_are_unknown():
    run = run_of(4, hosts=("a", "b"), ranks_per_host=None)
    assert ranks_per_host(run, ROUND) is None
    assert ranks_per_host(run, load_fabric("a100x8")) == 8
