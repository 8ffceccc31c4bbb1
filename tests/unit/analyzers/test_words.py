"""Numbers as a reader wants them in a sentence."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.words import bandwidth, in_steps


@pytest.mark.parametrize(
    ("each", "told"),
    [
        (3, "3 all_gathers"),
        (1, "1 all_gather"),
        (0.5, "1 all_gather in 2 steps"),
        (0.67, "2 all_gathers in 3 steps"),
        (0.02, "1 all_gather in 50 steps"),
        (0.0, "less than 1 all_gather in 100 steps"),
    ],
)
def test_a_mean_below_one_a_step_is_told_in_whole_numbers(each, told):
    assert in_steps(each, "all_gather") == told


@pytest.mark.parametrize(
    ("gbps", "told"), [(0.00102, "1.02 MB/s"), (1.57, "1.57 GB/s"), (296, "296 GB/s"), (5e-8, "50 B/s")]
)
def test_a_bandwidth_has_a_unit_that_it_can_be_read_in(gbps, told):
    assert bandwidth(gbps) == told
