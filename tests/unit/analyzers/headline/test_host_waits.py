"""The headline if a host's waiting costs most: batches before the step, values read from tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.findings.trust.unbilled_time import in_every_step_ns
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


def test_a_stall_of_one_rank_leads_over_the_waiting_that_it_causes():
    """Rank 1 fetches its batch for long, rank 0 waits for it: 60 ms are exposed there, 10 on rank 1."""
    rows = [
        step(rank=0, compute_ns=40 * MS, exposed_comm_ns=60 * MS, idle_ns=0),
        step(rank=1, compute_ns=40 * MS, exposed_comm_ns=10 * MS, idle_ns=50 * MS),
    ]
    stalls = [Stall(0, 1, "data", "next", "other", 1, 45 * MS, 45 * MS)]
    context = make_context(ledger(on_ranks((0, 1)), run=run_of(2), steps=rows, stalls=stalls), ROUND)
    fetched = stall("data-stall", 45, ranks=(1,))
    text = sentence.sentence(context, [fetched])
    assert text is not None
    assert text.startswith("Waiting for batches costs most: 45.0 ms per step on rank 1;")
    late = replace(stall("straggler", 40, ranks=(1,)), remedy=None)
    by_chance = sentence.sentence(context, [fetched, replace(late, severity="info")])
    assert by_chance == text
    warned = sentence.sentence(context, [fetched, late])
    assert warned is not None
    assert not warned.startswith("Waiting for batches")


def test_what_happens_once_in_several_steps_counts_with_its_mean():
    once = stall("checkpoint-stall", 40, ranks=(1,))
    assert in_every_step_ns(once, 1) == 40 * MS
    assert in_every_step_ns(once, 0) == 0
    assert in_every_step_ns(stall("data-stall", 40, 30, ranks=(1,)), 1) == 10 * MS
    # Reads of values are looked at in surveyed steps alone.
    assert in_every_step_ns(stall("host-sync", 40, ranks=(1,)), 1) == 0


def test_equal_batches_lead_whatever_else_costs_time():
    title = "ranks 0-1 trained on the same batches in 10 of 10 checked steps"
    equal = replace(stall("duplicated-data", 5), title=title)
    text = said(equal, stall("host-sync", 60))
    assert text.startswith(f"R{title[1:]};")
    likely = said(replace(equal, confidence="likely"), stall("host-sync", 60))
    assert likely.startswith("Reading values on the host costs most")
