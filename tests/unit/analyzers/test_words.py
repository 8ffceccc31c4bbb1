"""Numbers as a reader wants them in a sentence."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.words import in_steps


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
