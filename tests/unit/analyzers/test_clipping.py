"""Clipping sharded gradients: many small reductions after backward, and the one that a norm needs."""

from __future__ import annotations

from typing import Any

from shardtoll.ledger import Finding
from tests.unit.analyzers.ledgers import MS, US, collective, compute, ledger
from tests.unit.analyzers.of_kinds import running

COUNT = 100


def small(phase: str, **given: Any) -> list[Any]:
    """A hundred all_reduces of 4 bytes and 200 us on two ranks."""
    rows = []
    for rank in (0, 1):
        for n in range(COUNT):
            start = 20 * MS + n * 200 * US
            times = {"start_ns": start, "issue_ns": start, "duration_ns": 200 * US, "exposed_ns": 200 * US}
            values = {"message_bytes": 4, "phase": phase, "source": "clip.py:3 (clip)"} | times | given
            rows.append(collective(rank=rank, seq=n + 1, **values))
    return rows


def found(rows: list[Any], kind: str, **given: Any) -> list[Finding]:
    return [finding for finding in running(kind)(ledger(rows, **given)).findings if finding.kind == kind]


def backward(start: int) -> list[Any]:
    return [compute(rank=rank, phase="backward", start_ns=start) for rank in (0, 1)]


def test_a_loop_of_the_users_after_backward_is_of_the_optimizers_phase() -> None:
    (finding,) = found(small("other"), "latency-bound", computes=backward(1 * MS))
    assert finding.where.phase == "optimizer"
    assert "100 small all_reduces per step" in finding.title
    assert (finding.bytes, finding.count) == (4 * COUNT, COUNT)
    assert finding.remedy is not None
    assert "clip_grad_norm_" in finding.remedy.text
    assert "foreach=True" in str(finding.remedy.code)


def test_a_loop_before_backward_or_without_one_is_not() -> None:
    for computes in (backward(60 * MS), []):
        (finding,) = found(small("other"), "latency-bound", computes=computes)
        assert finding.where.phase == "other"
        assert "torch.cat" in str(finding.remedy and finding.remedy.code)


def test_the_one_reduction_that_a_norm_of_shards_needs_is_no_hidden_one() -> None:
    norm = {"implicit": True, "phase": "optimizer", "caused_by_op": "aten.linalg_vector_norm.default"}
    norm |= {"placements_to": "(Replicate())"}
    rows = [collective(rank=rank, placements_from="(NormPartial(sum))", **norm) for rank in (0, 1)]
    assert found(rows, "implicit-redistribute") == []
    assert found(rows, "exposed-communication") != []
    rows = [collective(rank=rank, placements_from="(Partial(sum))", **norm) for rank in (0, 1)]
    assert found(rows, "implicit-redistribute") != []
    assert found(rows, "exposed-communication") == []
