"""What a rank spends in a rooted operation is not the whole of it, and refutes no floor."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.context.refuted import Refuted
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.profiler.traces.file.commargs import comm_args
from shardtoll.profiler.traces.file.event import Args
from tests.unit.analyzers.ledgers import MS, US, collective, ledger, run_of, step


def refuted(op: str) -> tuple[Refuted, ...]:
    """Return the floors that 1 GiB in 1 µs refutes."""
    rows = [
        collective(rank=rank, op=op, root=0, message_bytes=1 << 30, start_ns=MS, duration_ns=US)
        for rank in range(2)
    ]
    job = run_of(2, device="NVIDIA H100 80GB HBM3", backend="nccl")
    made = ledger(rows, run=job, steps=[step(rank=rank) for rank in range(2)])
    return make_context(made, load_fabric("h100x8")).refuted


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_rooted_operations_refute_no_floor(op: str) -> None:
    assert refuted("all_reduce")
    assert refuted(op) == ()


def test_a_trace_tells_the_root_by_the_rank_of_a_rooted_operation() -> None:
    import msgspec

    ranks = msgspec.Raw(b"[4, 5, 6]")
    assert comm_args(Args(collective="broadcast", rank=1, ranks=ranks)).root == 5
    assert comm_args(Args(collective="_broadcast_oop", rank=0, ranks=ranks)).root == 4
    assert comm_args(Args(collective="allreduce", rank=1, ranks=ranks)).root is None
    assert comm_args(Args(collective="broadcast", rank=7, ranks=ranks)).root is None
    assert comm_args(Args(collective="broadcast", rank=1, root=6, ranks=ranks)).root == 6
