"""Advice for exposed communication goes by who asked for it."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.exposed_remedies import COUNTERFACTUAL, remedy


@pytest.mark.parametrize(
    ("cause", "op", "phase", "says"),
    [
        ("DeepSpeed.ZeRO-3.gather", "all_gather", "forward", "stage3_prefetch_bucket_size"),
        ("DeepSpeed.ZeRO-2.reduce", "all_reduce", "backward", "overlap_comm"),
        ("FSDP.unshard", "all_gather", "forward", "set_modules_to_forward_prefetch"),
        ("FSDP.unshard", "all_gather", "backward", "set_modules_to_backward_prefetch"),
        ("FSDP.post_backward", "reduce_scatter", "backward", "set_requires_gradient_sync"),
        ("DistributedDataParallel.buffers", "broadcast", "forward", "broadcast_buffers=False"),
        ("RowwiseParallel", "all_reduce", "forward", "SequenceParallel"),
        ("ColwiseParallel", "all_reduce", "backward", "SequenceParallel"),
        ("DTensor.full_tensor", "all_gather", "other", "step % 100"),
        ("all_gather", "all_gather", "other", "step % 100"),
        ("all_reduce", "all_reduce", "backward", "dist.all_reduce(tensor, async_op=True)"),
        ("", "reduce_scatter", "backward", "dist.reduce_scatter_tensor("),
        ("", "recv", "backward", "dist.irecv(tensor, src="),
        ("", "send", "forward", "dist.isend(tensor, dst="),
    ],
)
def test_advice_fits_the_cause(cause: str, op: str, phase: str, says: str) -> None:
    found = remedy(cause, op, phase)
    assert says in (found.code or "")
    assert found.counterfactual == COUNTERFACTUAL


def test_buckets_are_never_advised_to_grow() -> None:
    large = remedy("DistributedDataParallel.reducer", "all_reduce", "backward", 64 << 20)
    assert "bucket_cap_mb=32" in (large.code or "")
    for size in (None, 37, 1 << 20):
        small = remedy("DistributedDataParallel.reducer", "all_reduce", "backward", size)
        assert "bucket_cap_mb" not in (small.code or "")
        assert "smaller buckets would not" in small.text


def test_ddps_agreement_on_buckets_is_no_cost_of_later_steps() -> None:
    assert "once" in remedy("DistributedDataParallel", "broadcast", "forward").text


def test_an_unknown_cause_gets_general_advice() -> None:
    assert "asynchronously" in remedy("", "", "").text
