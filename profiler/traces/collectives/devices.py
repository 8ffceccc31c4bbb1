"""Several devices in one trace: each is a rank of its own, never one timeline.

Files of several processes put together (fused traces) hold a device for each process. A process that states
its rank and drives several devices keeps the one that does most. A notice names the others.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.collectives.comms import ranks_in
from shardtoll.profiler.traces.collectives.launches import launches, processes
from shardtoll.profiler.traces.file.trace_columns import KERNEL, DeviceWork, HostWork, Trace

Mask = npt.NDArray[np.bool_]
_Work = TypeVar("_Work", DeviceWork, HostWork)

_STRAY_SHARE: Final = 0.02
"""A device with fewer kernels than this share of the busiest one's only holds what strayed there."""


_MOST_DEVICES: Final = 256
"""Devices of one file that are ranks: the file is read once for each."""


class Part(Struct, frozen=True):
    """One device, and the host process that drives it."""

    device: int
    process: str | None
    """None: the trace's only process drives all devices."""


def parts_of(trace: Trace, *, alone: bool = True) -> list[Part]:
    """Return the devices that are ranks of their own; one or none means that the trace is one timeline.

    `alone`: the job has no other file. TraceError if there are more devices than a job's file can hold.
    """
    device = trace.device
    kernels = (device.kind == KERNEL) & (device.device >= 0)
    numbers, counts = np.unique(device.device[kernels], return_counts=True)
    if len(numbers) < 2:
        return []
    usual = [int(number) for number in numbers[counts > _STRAY_SHARE * counts.max()]]
    if len(usual) > _MOST_DEVICES:
        raise TraceError(
            f"{trace.meta.address} holds {len(usual)} devices, more than {_MOST_DEVICES}",
            "export one trace a rank",
        )
    pids = _working(trace)
    drivers = _drivers(trace, usual, pids)
    if drivers is not None:
        return [Part(number, drivers[number]) for number in usual]
    world = trace.meta.world_size
    states_rank = trace.meta.rank is not None and world not in (None, 1)
    if (states_rank and world != len(usual)) or (len(pids) == 1 and (states_rank or not alone)):
        # Its process is one rank whatever it drives: the busiest device stands for it.
        usual = [int(numbers[counts.argmax()])]
    return [Part(number, None) for number in usual]


def part_of(trace: Trace, parts: list[Part], nth: int) -> Trace:
    """Return the trace of one of the parts; with several, part n is rank n unless its process has another."""
    part = parts[nth]
    mine = trace.device.device == part.device
    made = replace(trace, device=_taken(trace.device, mine), notices=list(trace.notices))
    if part.process is not None:
        of_part = np.array([pid == part.process for pid, _ in trace.threads], np.bool_)
        for name in ("calls", "ops", "annotations", "frames"):
            work: HostWork = getattr(trace, name)
            setattr(made, name, _taken(work, of_part[work.thread]))
    else:
        launch = launches(trace.device, trace.calls, processes(trace))
        others = np.zeros(len(trace.calls.start_ns), np.bool_)
        others[launch[(launch >= 0) & ~mine]] = True
        others[launch[(launch >= 0) & mine]] = False
        made.calls = _taken(trace.calls, ~others)
    works: list[DeviceWork | HostWork] = [made.device, made.calls, made.ops, made.annotations, made.frames]
    made.start_ns = min((int(work.start_ns.min()) for work in works if len(work.start_ns)), default=0)
    made.end_ns = max((int(work.end_ns.max()) for work in works if len(work.end_ns)), default=0)
    if len(parts) == 1:
        text = f"{trace.meta.address}: its process drives several devices, device {part.device} stands for it"
        made.notices.append(("devices-left-out", text))
        return made
    rank = _ranks(trace, parts)[nth]
    size = max(len(parts), *(max(ranks_in(args), default=0) + 1 for args in trace.comm_args), 1)
    # A file that names its processes' ranks may be that of one host among several.
    stated = trace.meta.world_size or (None if trace.meta.process_ranks else size)
    made.meta = replace(trace.meta, rank=rank, world_size=stated)
    made.notices = [notice for notice in made.notices if notice[0] != "rank-from-name"]
    text = f"{trace.meta.address} holds {len(parts)} devices: device {part.device} counts as rank {rank}"
    made.notices.append(("devices-as-ranks", text))
    return made


def _ranks(trace: Trace, parts: list[Part]) -> list[int]:
    """Return the rank of each part: that of its process if all are known, else its place."""
    rank_of = dict(trace.meta.process_ranks)
    ranks = [rank_of[part.process] for part in parts if part.process in rank_of]
    return ranks if len(set(ranks)) == len(parts) else list(range(len(parts)))


def _working(trace: Trace) -> list[str]:
    """Return the processes that launch device work."""
    calls = trace.calls
    working = np.unique(calls.thread[calls.correlation > 0])
    return list(dict.fromkeys(trace.threads[thread][0] for thread in working.tolist()))


def _drivers(trace: Trace, devices: list[int], pids: list[str]) -> dict[int, str] | None:
    """Return which of the processes drives each device; None if one drives several, or it is unknown."""
    device, calls = trace.device, trace.calls
    if len(pids) < len(devices):
        return None
    launch = launches(device, calls, processes(trace))
    found: dict[int, str] = {}
    for number in devices:
        rows = launch[(device.device == number) & (launch >= 0)]
        if len(rows):
            threads, counts = np.unique(calls.thread[rows], return_counts=True)
            found[number] = trace.threads[int(threads[counts.argmax()])][0]
    if len(found) == len(set(found.values())) == len(devices):
        return found
    # Processes count their launches equally, so that only their order distinguishes them.
    return dict(zip(devices, pids, strict=True)) if not found and len(pids) == len(devices) else None


def _taken(work: _Work, rows: Mask) -> _Work:
    return replace(work, **{field.name: getattr(work, field.name)[rows] for field in fields(work)})
