"""DDP with one bucket for all gradients: what smaller ones hide, and when there is no such bucket."""

from __future__ import annotations

from typing import Any

from shardtoll.analyzers import run
from shardtoll.ledger import Finding
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger

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
    assert "smaller ones hide 14 ms" in finding.title
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
