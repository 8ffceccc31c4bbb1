"""A rank that changed by itself is named; what all ranks have in common is no rank's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from shardtoll.analyzers.compare.compare import Options, compare
from shardtoll.ledger import Report, Step
from shardtoll.ledger.answers.comparison import Comparison
from shardtoll.ledger.tables.tables import to_records, to_table
from tests.unit.analyzers.compare_runs import made
from tests.unit.analyzers.ledgers import MS


def run(seed: int, ranks: int, slow: Mapping[int, float], **given: object) -> Report:
    """A run where each rank varies by itself, and the others wait for the slow one."""
    random = np.random.default_rng(seed)
    report = made(seed, ranks=ranks, **given)  # type: ignore[arg-type]
    own = {}
    for one in to_records("steps", report.tables["steps"]):
        own[one.step, one.rank] = round((slow.get(one.rank, 0.0) + random.random()) * MS)
    last = {step: max(own[step, rank] for rank in range(ranks)) for step, _ in own}

    def longer(one: Step) -> Step:
        busy = own[one.step, one.rank]
        wait = last[one.step] - busy
        return replace(one, duration_ns=one.duration_ns + last[one.step], idle_ns=one.idle_ns + busy,
                       exposed_comm_ns=one.exposed_comm_ns + wait)  # fmt: skip

    steps = [longer(one) for one in to_records("steps", report.tables["steps"])]
    return replace(report, tables={**report.tables, "steps": to_table("steps", steps)})


def compared(before: Report, after: Report) -> Comparison:
    return compare(before, after, ("a", "b"), Options())


@pytest.mark.parametrize("ranks", [2, 3, 4, 20])
def test_a_straggler_that_came_or_went_is_named(ranks: int):
    plain, slow = run(0, ranks, {}), run(1, ranks, {1: 20.0})
    came, went = compared(plain, slow), compared(slow, plain)
    for found, verdict, sign in ((came, "more", "+"), (went, "less", "-")):
        (one,) = found.ranks
        assert (one.name, one.verdict) == ("rank 1 outside collectives", verdict)
        assert abs(one.difference or 0) == pytest.approx(20 * MS, rel=0.1)
        assert one.low is not None
        assert one.high is not None
        assert one.low < (one.difference or 0) < one.high
        assert f": rank 1 alone takes {sign}" in found.headline


def test_ranks_that_change_alike_are_not_named():
    every = dict.fromkeys(range(4), 20.0)
    found = compared(run(0, 4, {}), run(1, 4, every))
    assert (found.verdict, found.ranks) == ("changed", ())
    assert compared(run(0, 4, {1: 20.0}), run(1, 4, {1: 20.0})).ranks == ()
    assert compared(run(0, 4, {}), run(1, 8, {1: 20.0})).ranks == ()


def test_of_watched_steps_too_and_two_stragglers_are_two():
    found = compared(run(0, 6, {}, level="watch"), run(1, 6, {2: 30.0, 5: 20.0}, level="watch"))
    assert [one.name.split()[1] for one in found.ranks] == ["2", "5"]
