"""One timed sample of a collective, and its time from the ranks' clocks together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from shardtoll.profiler.calibrate.ops import PAIRED
from shardtoll.profiler.calibrate.timed_groups import Groups

_BATCH_BYTES: Final = 8 << 20
_MOST_CALLS: Final = 20


@dataclass(frozen=True, slots=True)
class Case:
    """One collective that is measured: op, size and where."""

    kind: Groups
    op: str
    message_bytes: int
    call: Callable[[], Any]

    def __str__(self) -> str:
        size = "" if self.op == "barrier" else f" of {self.message_bytes} bytes"
        return f"{self.op}{size} between {self.kind.ranks} ranks ({self.kind.name})"


def wait_for_all(device: torch.device) -> None:
    """Return when all ranks have come here, and their devices have nothing left to do."""
    if device.type == "cuda":
        # An all-reduce rather than a barrier, which asks for the device by name.
        dist.all_reduce(torch.zeros(1, device=device))
        torch.cuda.synchronize(device)
    else:
        dist.barrier()


def time_once(case: Case, device: torch.device) -> tuple[int, int]:
    """Return when this rank began one collective and when it was done with it, in ns of its own clock.

    On an accelerator several calls in a row are timed by its own events, as nccl-tests does, and one call's
    share counts. Launching the first is then not in the time of a short message.
    """
    wait_for_all(device)
    if device.type != "cuda":
        begun_ns = time.perf_counter_ns()
        case.call()
        return begun_ns, time.perf_counter_ns()
    calls = max(2, min(_MOST_CALLS, _BATCH_BYTES // max(case.message_bytes, 1)))
    begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begun.record()
    for _ in range(calls):
        case.call()
    done.record()
    done.synchronize()
    return 0, max(1, round(begun.elapsed_time(done) * 1e6 / calls))


def combined_ns(case: Case, spans: Sequence[tuple[int, int]], *, one_clock: bool) -> list[int]:
    """Return the time of each group's collective, from every rank's begin and end.

    Ranks that share a host share a clock. The time there is from when the last rank began to when the last
    was done, as reports separate transfer from waiting. Elsewhere it is the slowest rank's.
    """
    medians = []
    for members in case.kind.members:
        ranks = (members[0], members[-1]) if case.op in PAIRED else members
        begun, done = [spans[rank][0] for rank in ranks], [spans[rank][1] for rank in ranks]
        slowest = max(end - start for start, end in zip(begun, done, strict=True))
        together = max(done) - max(begun)
        medians.append(max(1, together if one_clock and case.kind.nodes == 1 and together > 0 else slowest))
    return medians
