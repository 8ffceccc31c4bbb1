"""DDP with one bucket for all gradients: what smaller ones hide, and when there is no such bucket."""

from __future__ import annotations

from typing import Any

from shardtoll.ledger import Finding
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger
from tests.unit.analyzers.ledgers import step as step_of
from tests.unit.analyzers.of_kinds import running

run = running("exposed-communication")

MIB = 1 << 20
REDUCER = "DistributedDataParallel.reducer"


def found(buckets: list[tuple[str, int]], backward_ns: int = 100 * MS, **given: Any) -> list[Finding]:
    rows = [
        collective(rank=rank, seq=n, message_bytes=size, parameter=name, caused_by_op=REDUCER, **times(n))
        for rank in (0, 1)
        for n, (name, size) in enumerate(buckets)
    ]
    computes = [compute(rank=rank, phase="backward", duration_ns=backward_ns) for rank in (0, 1)]
    report = run(ledger(rows, computes=computes, **given))
    return [finding for finding in report.findings if finding.kind == "exposed-communication"]


def times(n: int) -> dict[str, int]:
    return {"start_ns": n * 20 * MS, "issue_ns": n * 20 * MS, "duration_ns": 16 * MS, "exposed_ns": 16 * MS}


def test_all_but_the_last_of_smaller_buckets_can_be_hidden() -> None:
    (finding,) = found([("w", 32 * MIB)])
    # Eight buckets of 4 MiB: seven eighths of 16 ms.
    assert (finding.toll_ns, finding.saving_ns) == (16 * MS, 14 * MS)
    assert "nothing overlaps" in finding.title
    assert "smaller ones hide 14.0 ms" in finding.title
    assert finding.remedy is not None
    assert finding.remedy.code == "DistributedDataParallel(model, bucket_cap_mb=4)"


def test_no_more_can_be_hidden_than_backward_computes() -> None:
    (finding,) = found([("w", 32 * MIB)], backward_ns=8 * MS)
    assert finding.saving_ns == 7 * MS


def test_a_large_model_gets_no_larger_buckets_than_ddps_own() -> None:
    (finding,) = found([("w", 2000 * MIB)])
    assert finding.remedy is not None
    assert finding.remedy.code == "DistributedDataParallel(model, bucket_cap_mb=25)"


def test_the_same_bucket_of_several_backwards_is_one() -> None:
    (finding,) = found([("w", 32 * MIB), ("w", 32 * MIB)])
    assert "nothing overlaps" in finding.title


def test_several_buckets_and_small_models_do_overlap_or_cannot() -> None:
    for buckets in ([("w", 16 * MIB), ("v", 16 * MIB)], [("w", MIB)]):
        for finding in found(buckets):
            assert "nothing overlaps" not in finding.title


def test_the_first_steps_one_bucket_is_not_the_size_that_advice_halves() -> None:
    """DDP reduces all gradients of its first backward in one message, and cuts them into buckets then."""
    sizes = {0: 48 * MIB, 1: 16 * MIB, 2: 16 * MIB}
    rows = [
        collective(step=step, rank=rank, seq=2 * step + n, message_bytes=size, parameter=name,
                   caused_by_op=REDUCER, source="train.py:9 (main)", module=None,
                   **times(10 * step + n))
        for step, size in sizes.items()
        for rank in (0, 1)
        for n, name in enumerate(("w", "v") if step else ("w",))
    ]  # fmt: skip
    parts = {"compute_ns": 50 * MS, "exposed_comm_ns": 32 * MS, "exposed_copy_ns": 0, "idle_ns": 118 * MS}
    steps = [
        step_of(step, rank, start_ns=10 * step * 20 * MS, duration_ns=200 * MS, unattributed_ns=0, **parts)
        for step in sizes
        for rank in (0, 1)
    ]
    computes = [
        compute(step=step, rank=rank, phase="backward", start_ns=10 * step * 20 * MS, duration_ns=50 * MS)
        for step in sizes
        for rank in (0, 1)
    ]
    findings = run(ledger(rows, computes=computes, steps=steps)).findings
    codes = [one.remedy.code or "" for one in findings if one.kind == "exposed-communication" and one.remedy]
    assert codes
    for code in codes:
        assert "bucket_cap_mb=8" in code
