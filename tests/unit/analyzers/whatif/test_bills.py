"""Findings vanish by a change only if it removes their cause; buckets hold gradients of one backward."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.ledger import Ledger, analyze
from shardtoll.ledger.records.record import Collective, Compute
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, step

MICRO_BATCHES = 4
BUCKETS = (("b", 4 << 20), ("a", 1 << 20))
"""Parameter and bytes of each bucket of DDP, in the order of the gradients."""


def accumulating(watched: bool) -> Ledger:
    """Return three steps of two ranks that reduce two buckets in each of four micro-batches.

    If `watched`, the last two have no operators, issue times and counts of optimizer steps.
    """
    rows: list[Collective] = []
    computes: list[Compute] = []
    for number in range(3):
        surveyed = number == 0 or not watched
        for micro in range(MICRO_BATCHES):
            begins = (100 * number + 24 * micro) * MS
            if surveyed:
                computes += [
                    compute(
                        step=number, rank=rank, start_ns=begins + at * MS, phase=phase, index=len(computes)
                    )
                    for rank in (0, 1)
                    for at, phase in ((0, "forward"), (2, "backward"))
                ]
            for place, (name, size) in enumerate(BUCKETS):
                start = begins + (4 + 8 * place) * MS
                rows += [
                    collective(
                        step=number,
                        rank=rank,
                        seq=len(rows) // 2,
                        start_ns=start,
                        issue_ns=start if surveyed else None,
                        duration_ns=6 * MS,
                        exposed_ns=6 * MS,
                        parameter=name,
                        message_bytes=size,
                        caused_by_op="DistributedDataParallel.reducer",
                        source="train.py:13 (train)",
                        optimizer_steps=number + 1 if surveyed else None,
                        gradients_begun=number + 1 if surveyed else None,
                    )
                    for rank in (0, 1)
                ]
    steps: list[Any] = [
        step(number, rank, start_ns=100 * number * MS, level="watch" if watched and number else "survey")
        for number in range(3)
        for rank in (0, 1)
    ]
    return ledger(rows, computes=computes, steps=steps)


@pytest.mark.usefixtures("changed_bills")
@pytest.mark.parametrize("watched", [False, True])
def test_larger_buckets_leave_a_reduction_in_each_micro_batch(watched: bool) -> None:
    report = analyze(accumulating(watched))
    kinds = [each.kind for each in report.findings]
    number = kinds.index("sync-every-microbatch") + 1
    answer = report.whatif(bucket_bytes=25_000_000)
    assert not any(line.startswith("sync-every-microbatch") for line in answer.vanished + answer.appeared)
    # One message of two is left in each of four backwards, with the data of both and one latency less.
    assert 0 <= answer.saving_ns < 4 * MS
    assert any(line.startswith("sync-every-microbatch") for line in report.whatif(number).vanished)
