"""What the bill says of exposed communication never contradicts the roofline beside it."""

from __future__ import annotations

import pytest

from shardtoll.analyzers import run
from tests.unit.analyzers.fabrics import ROUND
from tests.unit.analyzers.ledgers import MS, ledger, on_ranks, run_of, step


def report_of(*rows, **times):
    both = [each for row in rows for each in on_ranks((0, 1), **row)]
    idle = 1000 * MS - sum(times.values())
    steps = [step(rank=rank, duration_ns=1000 * MS, idle_ns=idle, **times) for rank in (0, 1)]
    job = run_of(2, backend="nccl", device="NVIDIA H100 80GB HBM3")
    return run(ledger(both, steps=steps, run=job), ROUND)


@pytest.mark.parametrize(("computed", "free"), [(60, 30), (35, 5), (20, 0)])
def test_a_saving_is_no_more_than_compute_that_hides_nothing_yet(computed, free):
    shown = {"seq": 1, "start_ns": 0, "duration_ns": 40 * MS, "exposed_ns": 40 * MS}
    hidden = {"seq": 2, "start_ns": 50 * MS, "duration_ns": 30 * MS, "exposed_ns": 0}
    report = report_of(shown, hidden, compute_ns=computed * MS, exposed_comm_ns=40 * MS)
    (found,) = [each for each in report.findings if each.kind == "exposed-communication"]
    assert report.roofline is not None
    assert {rank.hideable_ns for rank in report.roofline.ranks} == {free * MS}
    assert (found.toll_ns, found.saving_ns) == (40 * MS, free * MS)


def test_a_floor_above_the_toll_is_not_held_against_it():
    row = {"seq": 1, "start_ns": 0, "message_bytes": 1 << 30, "duration_ns": 1000 * MS}
    for exposed, known in ((20 * MS, False), (900 * MS, True)):
        report = report_of(row | {"exposed_ns": exposed}, compute_ns=60 * MS, exposed_comm_ns=20 * MS)
        assert report.collectives["floor_ns"].between(20 * MS + 1, 900 * MS).all()
        (found,) = [each for each in report.findings if each.kind == "exposed-communication"]
        assert (found.floor_ns is not None) is known
        assert ("; floor" in found.title) is known
