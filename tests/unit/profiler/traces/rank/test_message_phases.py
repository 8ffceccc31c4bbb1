"""A message goes the way of the compute beside it, whatever thread sent it."""

from __future__ import annotations

import pytest

from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.trace_columns import CommArgs
from shardtoll.profiler.traces.rank.phases import ENGINE
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.unit.profiler.traces.build import GEMM, SEND_RECV, Build

SEND = CommArgs(name="send", group="pp", group_size=2, ranks=(0, 1), source_rank=0, target_rank=1)
RECV = CommArgs(name="recv", group="pp", group_size=2, ranks=(0, 1), source_rank=1, target_rank=0)


def phases(build: Build) -> list[tuple[str, str]]:
    """Return op and phase of each collective, in order of start."""
    rows = rank_ledger(build.trace(), load_table()).tables["collectives"].to_pylist()
    return [(row["op"], row["phase"]) for row in sorted(rows, key=lambda row: row["start_ns"])]


def one_f_one_b(forward: str, backward: str, autograd: bool) -> Build:
    """Forward, a message there and one back, backward, forward of the next, a message."""
    build = Build().note("ProfilerStep#0", 0, 1000)

    def compute(name: str, start: int, end: int, back: bool) -> None:
        thread = 1 if back and autograd else 0
        build.work(name, start, end, launch=start - 5, thread=thread)
        if back and autograd:
            build.op(f"{ENGINE}: AddmmBackward0", start - 8, start, 1)

    compute(forward, 100, 200, back=False)
    build.work(SEND_RECV, 200, 210, launch=195, stream=20, args=SEND)
    build.work(SEND_RECV, 215, 300, launch=205, stream=21, args=RECV)
    compute(backward, 300, 500, back=True)
    # A copy that the schedule makes between is no phase of its own.
    build.work(GEMM, 501, 503, launch=500)
    build.work(SEND_RECV, 505, 520, launch=504, stream=22, args=SEND)
    compute(forward, 530, 630, back=False)
    build.work(SEND_RECV, 630, 640, launch=625, stream=20, args=SEND)
    compute(backward, 650, 850, back=True)
    return build


WAYS = [("send", "forward"), ("recv", "backward"), ("send", "backward"), ("send", "forward")]


def test_autograds_kernels_tell_the_way_of_messages_from_the_training_thread() -> None:
    assert phases(one_f_one_b(GEMM, GEMM, autograd=True)) == WAYS


def test_without_autograd_on_record_names_of_kernels_tell() -> None:
    assert phases(one_f_one_b("flash_fwd_kernel", "flash_bwd_kernel", autograd=False)) == WAYS


def test_without_either_the_way_stays_unknown() -> None:
    assert {phase for _, phase in phases(one_f_one_b(GEMM, GEMM, autograd=False))} == {"other"}


@pytest.mark.parametrize("note", ["Forward 3", "PP:0SEND_F"])
def test_a_schedules_annotation_counts_more_than_compute(note: str) -> None:
    build = one_f_one_b(GEMM, GEMM, autograd=True).note(note, 503, 506)
    assert phases(build)[2] == ("send", "forward")
