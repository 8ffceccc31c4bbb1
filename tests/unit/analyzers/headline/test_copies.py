"""The headline weighs copies against idle time and communication, and bounds the bandwidth of one rank."""

from __future__ import annotations

import pytest

from shardtoll.analyzers import run
from shardtoll.ledger import Report, Stall
from shardtoll.profiler.traces import read_traces
from tests.shared_inputs import shared
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step


def report(copy: int, idle: int, comm: int) -> Report:
    """Return the report of one rank whose step of 100 ms has these parts, the rest compute."""
    parts = {"exposed_copy_ns": copy * MS, "idle_ns": idle * MS, "exposed_comm_ns": comm * MS}
    compute = (100 - copy - idle - comm) * MS
    stall = Stall(
        step=0, rank=0, kind="copy", name="Memcpy HtoD", phase="forward", count=1,
        total_ns=copy * MS, lost_ns=copy * MS,
    )  # fmt: skip
    about = run_of(1, source="trace", device="NVIDIA H100", backend="nccl")
    return run(ledger(run=about, steps=[step(compute_ns=compute, **parts)], stalls=[stall]))


@pytest.mark.parametrize(
    ("copy", "idle", "comm", "first"),
    [
        (
            60,
            25,
            0,
            "Memory copies cost most: Memcpy HtoD takes 60.0 ms (60 %) of rank 0's ",
        ),
        (25, 60, 0, "Idle time costs most"),
        (10, 10, 0, "No communication is on record"),
    ],
)
def test_what_costs_most_comes_first(copy: int, idle: int, comm: int, first: str) -> None:
    headline = report(copy, idle, comm).headline
    assert headline is not None
    assert headline.startswith(first)


def test_a_copy_that_is_most_of_a_real_step_is_the_headline() -> None:
    (job,) = read_traces(
        [str(shared("traces", "outside", "single", "copies_76_percent.json.gz"))], cache=False
    )
    headline = run(job.ledger).headline
    assert headline is not None
    assert headline.startswith("Memory copies cost most: Memcpy HtoD")
    assert "(76 %)" in headline


def one_of_eight(size: int, long_ms: int) -> str:
    rows = [
        collective(
            group_size=8, seq=n + 1, start_ns=n * 20 * MS, duration_ns=long_ms * MS, exposed_ns=long_ms * MS,
            message_bytes=size,
        )
        for n in range(4)
    ]  # fmt: skip
    about = run_of(8, source="trace", device="NVIDIA H100 80GB HBM3", backend="nccl", ranks_seen=(0,))
    headline = run(ledger(rows, run=about)).headline
    assert headline is not None
    return headline


def test_one_rank_alone_gives_a_lower_bound_of_the_bandwidth_and_what_it_excludes() -> None:
    # 1.6 GB in 10 ms: 160 GB/s of the algorithm, 280 GB/s on the bus of eight.
    fast = one_of_eight(1_600_000_000, 10)
    assert fast.startswith("Neither a slow network nor long waiting, though only 1 of 8 ranks was recorded: ")
    assert ", at 280 GB/s or more, at most " in fast
    slow = one_of_eight(16_000_000, 10)
    assert slow.startswith(
        "Cannot tell whether the network or a late rank is at fault, as only 1 of 8 ranks "
    )
    assert "at 2.80 GB/s or more" in slow
