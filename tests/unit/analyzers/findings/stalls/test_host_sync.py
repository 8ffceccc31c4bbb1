"""Values that the host reads in every step of an audit: line, count, time, and what is not billed twice."""

from __future__ import annotations

from typing import Any

from shardtoll.ledger import Finding, Stall
from shardtoll.ledger.records.stall import BLOCKED
from tests.unit.analyzers.ledgers import MS, US, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

run = running("host-sync")

CALL = "aten._local_scalar_dense"
STEPS = range(3)


def read(total: int, number: int = 0, count: int = 1, **given: Any) -> Stall:
    values = {"name": CALL, "phase": "other", "source": "train.py:9 (step)", "rank": 0} | given
    return Stall(step=number, kind="host-sync", count=count, total_ns=total, lost_ns=0, **values)


def syncs(stalls: list[Stall], **given: Any) -> list[Finding]:
    steps = [step(number, rank) for number in STEPS for rank in (0, 1)]
    report = run(ledger(stalls=stalls, **({"steps": steps} | given)))
    return [finding for finding in report.findings if finding.kind == "host-sync"]


def evidence(finding: Finding) -> dict[str, Any]:
    return {item.label: item.value for item in finding.evidence}


def test_many_reads_say_their_line_count_and_time() -> None:
    (finding,) = syncs([read(8 * MS, number, count=2000) for number in STEPS])
    assert (finding.toll_ns, finding.saving_ns, finding.count) == (8 * MS, 8 * MS, 2000)
    assert (finding.severity, finding.where.source) == ("warning", "train.py:9 (step)")
    assert "2,000 times per step" in finding.title
    assert finding.remedy is not None
    assert ".item()" in finding.remedy.text


def test_one_cheap_read_a_step_is_information() -> None:
    (finding,) = syncs([read(3 * US, number) for number in STEPS])
    assert (finding.severity, finding.toll_ns) == ("info", 3 * US)


def test_a_read_now_and_then_is_none() -> None:
    assert syncs([read(3 * US)]) == []
    assert syncs([read(3 * US)], steps=[step(0, rank) for rank in (0, 1)]) == []


def test_lines_are_places_of_one_finding() -> None:
    costs = {9: 3 * US, 12: 5 * US, 20: 1 * US}
    stalls = [
        read(cost, number, source=f"train.py:{line} (step)")
        for number in STEPS
        for line, cost in costs.items()
    ]
    (finding,) = syncs(stalls)
    assert [place.where.source for place in finding.places] == [
        f"train.py:{line} (step)" for line in (12, 9, 20)
    ]
    assert [(place.toll_ns, place.count) for place in finding.places] == [(5 * US, 1), (3 * US, 1), (US, 1)]
    assert (finding.toll_ns, finding.count) == (9 * US, 3), "what the places cost together"
    assert finding.where == finding.places[0].where
    assert "by calls at 3 places, mostly once per step in other at train.py:12 (step), " in finding.title


def test_a_line_that_reads_now_and_then_is_in_no_figure() -> None:
    often = [read(3 * US, number) for number in STEPS]
    (finding,) = syncs([*often, read(30 * US, 1, source="train.py:99 (log)")])
    assert (finding.toll_ns, finding.count, finding.places) == (3 * US, 1, ())
    assert "train.py:9 (step)" in finding.title


def test_what_a_read_waits_for_a_collective_is_said_and_not_billed_again() -> None:
    waits = [read(30 * MS, number, count=0, name=CALL + BLOCKED) for number in STEPS]
    (finding,) = syncs([read(1 * MS, number) for number in STEPS] + waits)
    assert finding.toll_ns == 1 * MS
    assert "blocked on collectives for 30.0 ms more" in finding.title
    assert evidence(finding)["blocked on collectives meanwhile, billed as communication"] == 30 * MS
    assert (finding.severity, finding.count) == ("warning", 1)


def test_on_an_accelerator_the_time_is_the_hosts() -> None:
    about = run_of(2, device="NVIDIA H100 80GB HBM3", backend="nccl")
    (finding,) = syncs([read(20 * MS, number) for number in STEPS], run=about)
    assert (finding.toll_ns, finding.saving_ns, finding.confidence) == (None, None, "likely")
    assert "waits for the device for 20.0 ms per step" in finding.title


def test_one_long_wait_in_a_traces_only_step_asks_for_more_steps() -> None:
    def waits(*numbers: int, **about: Any) -> Finding:
        stalls = [Stall(n, 0, "host-sync", "hipMemcpy", "other", 1, 60 * MS, 60 * MS) for n in numbers]
        steps = [step(n, 0, compute_ns=30 * MS, exposed_comm_ns=0, idle_ns=70 * MS) for n in numbers]
        run_about = run_of(1, source="trace", device="NVIDIA H100", backend="nccl", **about)
        (finding,) = run(ledger(run=run_about, stalls=stalls, steps=steps)).findings
        assert finding.remedy is not None
        return finding

    alone, often = waits(0), waits(0, 1)
    assert (alone.confidence, often.confidence) == ("possible", "likely")
    assert alone.remedy is not None
    assert often.remedy is not None
    assert alone.remedy.text.startswith("Record more steps first: this one wait may not")
    assert often.remedy.text.startswith("Read values from the device")
    assert "one wait in one recorded step" in alone.title
    assert "recorded step" not in often.title
