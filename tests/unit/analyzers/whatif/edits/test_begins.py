"""A rank that waits for its batch between steps begins later: its fixes let it begin with its peers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.ledger import Collective, Ledger, Report, Stall, Step, UsageError, analyze
from tests.unit.analyzers.ledgers import MS, collective, ledger, step

LATE_MS, OWN_MS, REDUCED_MS = 160, 8, 2
STEPS = range(6)


def job(late_ms: int = LATE_MS, both: bool = False) -> Ledger:
    """Two ranks: rank 1 waits so long for its batch before each step but the first; `both`: rank 0 too."""
    rows: list[Collective] = []
    steps: list[Step] = []
    stalls: list[Stall] = []
    for number in STEPS:
        begin = number * 1000 * MS
        late = {0: late_ms if both and number else 0, 1: late_ms if number else 0}
        end = begin + (max(late.values()) + OWN_MS + REDUCED_MS) * MS
        for rank in (0, 1):
            began = begin + late[rank] * MS
            start = began + OWN_MS * MS
            rows.append(
                collective(
                    step=number,
                    rank=rank,
                    seq=number + 1,
                    start_ns=start,
                    issue_ns=start,
                    duration_ns=end - start,
                    exposed_ns=end - start,
                )
            )
            parts = {"compute_ns": OWN_MS * MS, "exposed_comm_ns": end - start, "idle_ns": 0}
            steps.append(step(number, rank, start_ns=began, duration_ns=end - began, **parts))
            waited = late[rank] * MS
            stalls.append(
                Stall(
                    number, rank, "data", "next", "other", 1, waited, 0, source="t.py:1 (f)", before_ns=waited
                )
            )
    return ledger(rows, steps=steps, stalls=stalls)


@pytest.fixture(scope="module")
def report() -> Report:
    return analyze(job())


def test_a_batch_that_is_ready_saves_what_others_waited_for_a_rank_that_began_late(report: Report) -> None:
    of_batches = report.whatif(batch_ready=True)
    number = next(place for place, each in enumerate(report.findings, 1) if each.kind == "data-stall")
    # Five of six steps waited 160 ms.
    for answer in (of_batches, report.whatif(number)):
        assert answer.saving_ns == pytest.approx(LATE_MS * MS * 5 / 6, rel=0.02)


def test_a_late_rank_as_fast_as_its_peers_begins_with_them(report: Report) -> None:
    number = next(place for place, each in enumerate(report.findings, 1) if each.kind == "straggler")
    alone = report.whatif(number).saving_ns
    assert alone == pytest.approx(LATE_MS * MS * 5 / 6, rel=0.02)
    batches = next(place for place, each in enumerate(report.findings, 1) if each.kind == "data-stall")
    # One wait goes once.
    assert report.whatif(number, batches).saving_ns == pytest.approx(alone, rel=0.01)


def test_ranks_that_all_wait_between_steps_lose_nothing_inside_of_them() -> None:
    both = analyze(job(both=True))
    with pytest.raises(UsageError, match="no wait for a batch that makes a step longer"):
        both.whatif(batch_ready=True)


def test_no_rank_begins_before_the_first_one() -> None:
    made = job(late_ms=20)
    stalls = made.tables["stalls"]
    longer = stalls.set_column(
        stalls.schema.get_field_index("before_ns"),
        "before_ns",
        [[value and value * 3 for value in stalls.column("before_ns").to_pylist()]],
    )
    report = analyze(replace(made, tables={**made.tables, "stalls": longer}))
    assert report.whatif(batch_ready=True).saving_ns == pytest.approx(20 * MS * 5 / 6, rel=0.05)
