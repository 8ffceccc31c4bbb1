"""Floors that measured transfers lie below are unknown, and the fabric's line says so."""

from __future__ import annotations

import pytest

from shardtoll.analyzers import run
from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.roofline import Placement, collective_cost
from shardtoll.ledger.words.human import duration
from tests.unit.analyzers.fabrics import ROUND
from tests.unit.analyzers.ledgers import MS, collective, ledger, on_ranks, run_of, step


def job(duration_ns, *, many=3, size=1 << 30, late=0, **given):
    """Two ranks in `many` all_reduces; rank 1 starts `late` ns after rank 0 and ends with it."""
    rows = []
    for seq in range(1, many + 1):
        start = seq * 40 * MS
        shared = {"seq": seq, "message_bytes": size, "group_size": 2} | given
        rows.append(collective(rank=0, start_ns=start, duration_ns=duration_ns + late, **shared))
        rows.append(collective(rank=1, start_ns=start + late, duration_ns=duration_ns, **shared))
    return ledger(rows, steps=[step(rank=rank) for rank in (0, 1)], run=run_of(2))


def floor_ns():
    (row,) = {int(value) for value in make_context(job(10_000 * MS), ROUND).collectives["floor_ns"]}
    return row


def limit():
    """Times the floor: what refutes it lies below nine tenths of it, and below the band of sound runs."""
    cost = collective_cost(ROUND, "all_reduce", 1 << 30, Placement(2, 1, 2))
    return min(0.9, cost.low_ns / cost.floor_ns)


@pytest.mark.parametrize(("part", "refuted"), [(0.5, True), (0.99, True), (1.02, False), (1.6, False)])
def test_a_floor_is_refuted_by_transfers_well_below_it(part, refuted):
    factor = part * limit()
    context = make_context(job(round(floor_ns() * factor), late=3 * MS), ROUND)
    assert bool(context.collectives["floor_ns"].isna().all()) is refuted
    assert bool(context.collectives["expected_latency_ns"].isna().all()) is refuted
    report = run(job(round(floor_ns() * factor), late=3 * MS), ROUND)
    assert ("REFUTED by this job's measurements" in report.fabric.provenance) is refuted
    if refuted:
        (one,) = context.refuted
        assert (one.op, one.ranks, one.seen, one.floor_ns) == ("all_reduce", (0, 1), 3, floor_ns())
        assert one.factor == pytest.approx(factor, rel=1e-3)
        told = f"took {duration(factor * floor_ns())} in the median of 3 collectives, less than its floor of"
        assert f"all_reduce of 1.07 GB on group pg (ranks 0-1) {told}" in report.fabric.provenance
        assert "times the expected time" not in (report.headline or "")
        assert report.collectives["floor_ns"].isna().all()


def test_the_speed_of_light_stays_unless_transfers_lie_below_that_too():
    cost = collective_cost(ROUND, "all_reduce", 1 << 30, Placement(2, 1, 2))
    for took, known in ((round(0.5 * cost.light_ns), False), (round(0.895 * cost.floor_ns), True)):
        assert took < limit() * cost.floor_ns
        context = make_context(job(took), ROUND)
        assert context.collectives["floor_ns"].isna().all()
        assert bool(context.collectives["light_ns"].notna().all()) is known


def test_one_rank_with_a_short_span_refutes_nothing():
    rows = []
    for seq in (1, 2, 3):
        start, whole = seq * 40 * MS, floor_ns() * 2
        shared = {"seq": seq, "message_bytes": 1 << 30, "group_size": 2}
        rows.append(collective(rank=0, start_ns=start, duration_ns=whole, **shared))
        rows.append(collective(rank=1, start_ns=start, duration_ns=whole // 10, **shared))
    context = make_context(ledger(rows, steps=[step(rank=0), step(rank=1)], run=run_of(2)), ROUND)
    assert context.refuted == ()
    assert context.collectives["floor_ns"].notna().all()


def test_other_sizes_keep_their_floors():
    quick = job(floor_ns() // 2).tables["collectives"].to_pylist()
    small = on_ranks((0, 1), seq=9, start_ns=400 * MS, message_bytes=1 << 10, duration_ns=5 * MS)
    rows = [collective(**row) for row in quick] + small
    context = make_context(ledger(rows, steps=[step(rank=0), step(rank=1)], run=run_of(2)), ROUND)
    assert len(context.refuted) == 1
    kept = context.collectives[context.collectives["message_bytes"] == 1 << 10]
    assert kept["floor_ns"].notna().all()


@pytest.mark.parametrize(("op", "refuted"), [("all_reduce", True), ("reduce", False)])
def test_a_whole_span_refutes_too_where_one_rank_was_seen_and_its_transfer_is_unknown(op, refuted):
    cost = collective_cost(ROUND, op, 1 << 30, Placement(2, 1, 2))
    took = round(0.5 * cost.light_ns)
    rows = [
        collective(
            op=op, seq=seq, start_ns=seq * 40 * MS, message_bytes=1 << 30, group_size=2, duration_ns=took
        )
        for seq in (1, 2, 3)
    ]
    report = run(ledger(rows, steps=[step(rank=0)], run=run_of(2, ranks_seen=(0,))), ROUND)
    assert report.collectives["transfer_ns"].isna().all()
    assert bool(report.collectives["floor_ns"].isna().all()) is refuted
    assert bool(report.collectives["light_ns"].isna().all()) is refuted
    assert report.fabric.provenance.count("REFUTED") == int(refuted)
    assert ("and than the links' speed of light" in report.fabric.provenance) is refuted


def test_an_op_is_one_sentence_however_many_of_its_sizes_are_refuted():
    rows = [
        row
        for seq, size in enumerate((1 << 30, 1 << 29, 1 << 28), start=1)
        for row in on_ranks((0, 1), seq=seq, start_ns=seq * 40 * MS, message_bytes=size, duration_ns=MS)
    ]
    found = run(ledger(rows, steps=[step(rank=0), step(rank=1)], run=run_of(2)), ROUND).fabric.provenance
    assert found.count("all_reduce") == 1
    assert "(2 other sizes of it likewise)" in found
