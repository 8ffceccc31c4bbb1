"""The second forward of a live run lasts as long as the first does between the same operators."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.roofline import choose_fabric
from shardtoll.analyzers.whatif.edits.taken_out import second_forward_ns
from shardtoll.ledger import Collective, Compute
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, run_of, step


def seconds(
    *rows: tuple[str, str, float],
    waits: Sequence[Collective] = (),
    capture_ms: float = 0.0,
) -> dict[int, float]:
    """Return what rank 0's second forward takes in ms; rows: phase, module, and when the operator began."""
    computes: list[Compute] = [
        compute(index=nth, phase=phase, module=module, start_ns=int(at_ms * MS), op="aten.mm.default")
        for nth, (phase, module, at_ms) in enumerate(rows)
    ]
    taken = int(capture_ms * MS)
    parts = {"capture_ns": taken, "unattributed_ns": taken, "compute_ns": 50 * MS - taken}
    steps = [step(rank=rank, **parts) for rank in (0, 1)]
    made = ledger(waits, run=run_of(), steps=steps, computes=computes)
    found = second_forward_ns(make_context(made, choose_fabric(made.run)))
    return {rank: ns / MS for rank, ns in found.items()}


FIRST = (("forward", "a", 0.0), ("forward", "b", 10.0), ("forward", "c", 30.0))


def test_each_operator_stands_for_its_like_until_the_next_one_begins() -> None:
    again = (("recompute", "b", 40.0), ("backward", "b", 45.0), ("recompute", "a", 60.0))
    assert seconds(*FIRST, *again) == {0: pytest.approx(20 + 10)}


def test_the_last_of_a_forward_and_one_without_a_like_stand_for_themselves() -> None:
    assert seconds(*FIRST, ("recompute", "c", 40.0), ("recompute", "d", 50.0)) == {0: pytest.approx(1 + 1)}


def test_a_module_called_twice_stands_for_its_mean() -> None:
    twice = (("forward", "a", 0.0), ("forward", "a", 10.0), ("forward", "b", 40.0))
    assert seconds(*twice, ("recompute", "a", 60.0)) == {0: pytest.approx(20)}


def test_exposed_collectives_and_the_share_of_capture_are_not_of_it() -> None:
    wait = collective(
        issue_ns=12 * MS, start_ns=12 * MS, duration_ns=8 * MS, exposed_ns=8 * MS, phase="forward"
    )
    again = ("recompute", "b", 40.0)
    assert seconds(*FIRST, again, waits=[wait]) == {0: pytest.approx(12)}
    assert seconds(*FIRST, again, capture_ms=25) == {0: pytest.approx(15)}


def test_without_a_second_forward_there_is_none() -> None:
    assert seconds(*FIRST) == {}
