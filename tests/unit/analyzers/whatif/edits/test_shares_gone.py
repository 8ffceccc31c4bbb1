"""Equal work goes once: which share of nodes' time several edits leave."""

from __future__ import annotations

import numpy as np
import pytest

from shardtoll.analyzers.whatif.edits.shares_gone import Floats, SharesGone


def of(*shares: float) -> Floats:
    return np.array(shares)


def test_equal_work_goes_once_and_different_work_adds_up() -> None:
    gone = SharesGone(3)
    assert gone.book("data", of(0.5, 0.2, 1.0)) == pytest.approx([0.5, 0.8, 0.0])
    # The larger share of the same work is gone, and all of a node at most.
    assert gone.book("data", of(0.2, 0.4, 1.0)) == pytest.approx([1.0, 0.75, 1.0])
    assert gone.book("copy", of(0.1, 0.9, 1.0)) == pytest.approx([0.8, 0.0, 1.0])


def test_parts_of_a_work_add_up_to_the_whole_of_it_at_most() -> None:
    gone = SharesGone(2)
    assert gone.book("recompute", of(0.2, 0.2), "one") == pytest.approx([0.8, 0.8])
    assert gone.book("recompute", of(0.2, 0.2), "other") == pytest.approx([0.75, 0.75])
    assert gone.book("recompute", of(0.2, 0.2), "other") == pytest.approx([1.0, 1.0])
    assert gone.book("recompute", of(0.7, 0.3)) == pytest.approx([0.5, 1.0])


def test_a_late_rank_loses_its_excess_and_what_its_peers_lose_and_no_less_than_alone() -> None:
    gone = SharesGone(2)
    gone.book_late(of(0.5, 0.5), np.array([True, True]))
    left = gone.book("data", of(0.6, 0.9), as_peers=of(0.25, 0.25))
    assert left == pytest.approx([0.25 / 0.5, 0.1 / 0.5])


def test_idle_time_of_others_that_goes_with_a_late_rank_may_be_of_any_work() -> None:
    gone = SharesGone(2)
    gone.book_late(of(0.5, 0.5), np.array([False, False]))
    assert gone.book("data", of(0.3, 0.8)) == pytest.approx([1.0, 0.2 / 0.5])
