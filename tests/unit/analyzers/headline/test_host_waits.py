"""The headline if a host's waiting costs most: batches before the step, values read from tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.headline import sentence
from shardtoll.ledger import Figure, Finding, Remedy, Stall
from tests.unit.analyzers.fabrics import ROUND
from tests.unit.analyzers.ledgers import MS, collective, ledger, on_ranks, run_of, step

ADVICE = Remedy("Fetch batches in worker processes ahead of the step (`num_workers`).")


def said(*findings: Finding, idle_ms: int = 10, lost_ms: int = 0) -> str:
    """Return the headline of two ranks that compute, with 20 of 100 ms of exposed communication.

    `lost_ms`: of the idle time so much is on record as lost to reads of values.
    """
    stalls = [
        Stall(0, rank, "host-sync", "item", "other", 1, lost_ms * MS, lost_ms * MS)
        for rank in (0, 1)
        if lost_ms
    ]
    rows = [
        step(
            rank=rank,
            compute_ns=(80 - idle_ms) * MS,
            exposed_comm_ns=20 * MS,
            idle_ns=idle_ms * MS,
        )
        for rank in (0, 1)
    ]
    context = make_context(ledger(on_ranks((0, 1)), run=run_of(2), steps=rows, stalls=stalls), ROUND)
    text = sentence.sentence(context, findings)
    assert text is not None
    return text


def stall(kind: str, toll_ms: int, before_ms: int = 0, ranks: tuple[int, ...] = (0, 1)) -> Finding:
    toll = toll_ms * MS
    figures = (Figure("before_step_ns", before_ms * MS, "ns"),) if before_ms else ()
    return Finding(kind, "warning", "t", toll, None, toll, None, 1, ranks, remedy=ADVICE, figures=figures)


def test_a_wait_before_the_step_that_exceeds_its_parts_leads():
    text = said(stall("data-stall", 400, 390))
    assert text.startswith(
        "Waiting for batches costs most: 390 ms before each step; waiting for ranks and moving data take "
        "20 % of"
    )
    assert text.endswith("; fetch batches in worker processes ahead of the step.")


def test_reading_values_leads_over_late_ranks():
    assert said(stall("host-sync", 30)).startswith("Reading values on the host costs most: 30.0 ms per step;")
    one = stall("host-sync", 30, ranks=(1,))
    assert said(one).startswith("Reading values on the host costs most: 30.0 ms per step on rank 1;")


def test_idle_time_that_it_accounts_for_does_not_count_against_it():
    read = stall("host-sync", 30)
    assert said(read, idle_ms=35, lost_ms=30).startswith("Reading values on the host costs most: 30.0 ms")
    # Half of the idle time has another reason, and lasts longer.
    assert not said(read, idle_ms=65, lost_ms=30).startswith("Reading values")


@pytest.mark.parametrize(
    ("findings", "idle_ms"),
    [
        ((stall("host-sync", 15),), 10),
        ((stall("host-sync", 30),), 40),
        ((replace(stall("host-sync", 30), severity="info"),), 10),
        ((stall("data-stall", 30, ranks=(1,)), stall("straggler", 25, ranks=(1,))), 10),
    ],
    ids=["less than communication", "less than idle time", "information", "of the late rank"],
)
def test_what_costs_more_leads(findings: tuple[Finding, ...], idle_ms: int):
    assert "costs most: 30" not in said(*findings, idle_ms=idle_ms)
    assert not said(*findings, idle_ms=idle_ms).startswith(("Reading values", "Waiting for batches"))


def test_what_is_unknown_does_not_lead_and_what_is_possible_neither():
    none = {"compute_ns": 0, "exposed_comm_ns": 0, "idle_ns": 0, "unattributed_ns": 100 * MS}
    rows = [step(rank=rank, level="watch", **none) for rank in (0, 1)]
    unknown = [replace(collective(rank=rank), exposed_ns=None) for rank in (0, 1)]
    context = make_context(ledger(unknown, run=run_of(2), steps=rows), ROUND)
    text = sentence.sentence(context, [stall("data-stall", 400, 390)])
    assert text is not None
    assert text.startswith("Waiting for batches costs most: 390 ms before each step")
    assert "costs most" not in said(replace(stall("data-stall", 400, 390), confidence="possible"))
    dearer = replace(stall("host-sync", 30), kind="duplicated-compute", toll_ns=50 * MS)
    assert "costs most" not in said(dearer, stall("host-sync", 30))
