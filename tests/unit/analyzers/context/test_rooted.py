"""What a rank spends in a rooted operation is not the whole of it: it tells no rate and refutes no floor."""

from __future__ import annotations

import pandas as pd
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


def waits_of(op: str, *spans: tuple[int, int], root: int | None = 0, backend: str = "nccl") -> pd.DataFrame:
    """Return what is filled in of one operation whose ranks have these starts and ends, in us."""
    rows = [
        collective(
            rank=rank,
            op=op,
            root=root,
            group_size=len(spans),
            message_bytes=8000,
            start_ns=start * US,
            duration_ns=(end - start) * US,
            exposed_ns=(end - start) * US,
        )
        for rank, (start, end) in enumerate(spans)
    ]
    made = ledger(
        rows, run=run_of(len(spans), backend=backend), steps=[step(rank=rank) for rank in range(len(spans))]
    )
    return make_context(made, load_fabric("h100x8")).collectives


SPANS = ((100, 120), (40, 150), (130, 160))
"""Of three ranks; rank 0 is the root."""


def test_receivers_wait_for_the_root_and_the_rate_is_that_of_the_whole() -> None:
    frame = waits_of("broadcast", *SPANS)
    assert frame["wait_ns"].tolist() == [0, 60 * US, 0]
    assert frame["transfer_ns"].tolist() == [20 * US, 50 * US, 30 * US]
    # From the root's start to the last end: 60 us.
    assert frame["busbw_gbps"].tolist() == pytest.approx([8000 / 60_000] * 3)
    assert (set(frame["late_rank"]), set(frame["late_ns"])) == ({0}, {60 * US})


def test_the_root_of_a_reduce_waits_for_all() -> None:
    frame = waits_of("reduce", (40, 160), (100, 101), (130, 150))
    assert frame["wait_ns"].tolist() == [90 * US, 0, 0]
    assert frame["transfer_ns"].tolist() == [30 * US, US, 20 * US]
    # From when the last rank has come to the last end: 30 us.
    assert frame["busbw_gbps"].tolist() == pytest.approx([8000 / 30_000] * 3)
    assert (set(frame["late_rank"]), set(frame["late_ns"])) == ({2}, {30 * US})


@pytest.mark.parametrize("op", ["broadcast", "scatter", "reduce", "gather"])
def test_without_its_root_a_rooted_operation_tells_neither_waiting_nor_rate(op: str) -> None:
    frame = waits_of(op, *SPANS, root=None)
    for name in ("wait_ns", "transfer_ns", "busbw_gbps", "late_rank", "late_ns"):
        assert frame[name].isna().all()


def test_a_receiver_that_was_done_before_the_root_began_is_a_wrong_record() -> None:
    frame = waits_of("broadcast", (100, 120), (40, 90), (130, 160))
    assert frame["wait_ns"].isna().all()
    assert frame["busbw_gbps"].isna().all()


def us(frame: pd.DataFrame, name: str) -> list[int]:
    """Return a column in us."""
    return [int(ns) // US for ns in frame[name]]


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_on_gloo_who_sends_waits_for_who_receives(op: str) -> None:
    """Rank 1 comes last, and the root stands until then; rank 2 has its data from the root alone."""
    frame = waits_of(op, (100, 165), (160, 170), (40, 120), backend="gloo")
    assert us(frame, "wait_ns") == [60, 0, 60]
    assert us(frame, "transfer_ns") == [5, 10, 20]
    assert (set(frame["late_rank"]), set(frame["late_ns"])) == ({1}, {60 * US})
    # The longest that a rank took once it waited no more: 20 us.
    factor = 8000 / 20_000 * (2 / 3 if op == "scatter" else 1)
    assert frame["busbw_gbps"].tolist() == pytest.approx([factor] * 3)


def test_on_gloo_the_leaf_of_a_gather_waits_for_its_root_alone() -> None:
    frame = waits_of("gather", (90, 170), (40, 100), (150, 165), backend="gloo")
    assert us(frame, "wait_ns") == [60, 50, 0]
    assert us(frame, "transfer_ns") == [20, 10, 15]
    assert (set(frame["late_rank"]), set(frame["late_ns"])) == ({2}, {60 * US})


def test_on_gloo_the_last_root_of_a_gather_is_late() -> None:
    frame = waits_of("gather", (150, 170), (40, 160), (30, 165), backend="gloo")
    assert us(frame, "wait_ns") == [0, 110, 120]
    assert (set(frame["late_rank"]), set(frame["late_ns"])) == ({0}, {110 * US})


def test_on_gloo_all_ranks_of_a_reduce_wait_for_the_last() -> None:
    frame = waits_of("reduce", (40, 160), (100, 151), (150, 155), backend="gloo")
    assert us(frame, "wait_ns") == [110, 50, 0]
    assert us(frame, "transfer_ns") == [10, 1, 5]


def test_on_gloo_a_broadcast_goes_down_a_binomial_tree() -> None:
    """Root 1 sends to ranks 2 and 3, rank 2 on to rank 0. Rank 2 is late: the root and rank 0 wait for it."""
    frame = waits_of("broadcast", (10, 520), (20, 510), (500, 515), (30, 60), root=1, backend="gloo")
    assert us(frame, "wait_ns") == [490, 480, 0, 0]
    assert us(frame, "transfer_ns") == [20, 10, 15, 30]
    assert set(frame["late_rank"]) == {2}
    # Rank 0 is late: rank 2 waits for it, the root does not.
    frame = waits_of("broadcast", (500, 520), (20, 50), (10, 515), (30, 60), root=1, backend="gloo")
    assert us(frame, "wait_ns") == [0, 10, 490, 0]
    assert set(frame["late_rank"]) == {0}


def test_on_gloo_times_refute_waiting() -> None:
    """The root ended long before the receiver came, as if another backend had carried it."""
    frame = waits_of("broadcast", (100, 120), (900, 910), backend="gloo")
    assert us(frame, "wait_ns") == [0, 0]
    assert frame["late_rank"].isna().all()


def test_on_gloo_a_receiver_noted_late_by_microseconds_is_waited_for() -> None:
    """A busy host notes the beginning a little after the data was through: the root waited all the time."""
    frame = waits_of("broadcast", (100, 900), (940, 990), backend="gloo")
    assert us(frame, "wait_ns") == [800, 0]
    assert us(frame, "transfer_ns") == [0, 50]
