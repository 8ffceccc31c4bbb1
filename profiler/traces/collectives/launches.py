"""Matches launches and kernels: which call, and so which step, launched each piece of device work."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardtoll.profiler.traces.collectives.steps import Steps
from shardtoll.profiler.traces.file.trace_columns import I64, DeviceWork, HostWork, Trace


def launches(device: DeviceWork, calls: HostWork, pids: I64 | None = None) -> I64:
    """Return the row of the call that launched each piece of device work; -1 if it was not recorded.

    `pids`: the process of each thread, from `processes`. Each counts its correlation ids by itself.
    """
    numbered = np.flatnonzero(calls.correlation > 0)
    if not len(numbered):
        return np.full(len(device.start_ns), -1, np.int64)
    numbered = numbered[np.argsort(calls.correlation[numbered], kind="stable")]
    numbers = calls.correlation[numbered]
    place = np.minimum(np.searchsorted(numbers, device.correlation), len(numbers) - 1)
    hit = (numbers[place] == device.correlation) & (device.correlation > 0)
    if pids is not None:
        hit &= ~_ambiguous(numbers, pids[calls.thread[numbered]])[place]
    return np.where(hit, numbered[place], -1)


def processes(trace: Trace) -> I64 | None:
    """Return a number for the process of each thread; None if all are of one."""
    pids: dict[str, int] = {}
    process_of = [pids.setdefault(pid, len(pids)) for pid, _ in trace.threads]
    return np.array(process_of, np.int64) if len(pids) > 1 else None


def _ambiguous(numbers: I64, pid: I64) -> npt.NDArray[np.bool_]:
    """Return for each number whether several processes use it: its process is then unknown."""
    _, group = np.unique(numbers, return_inverse=True)
    least = np.full(int(group.max()) + 1, np.iinfo(np.int64).max, np.int64)
    most = np.full(len(least), -1, np.int64)
    np.minimum.at(least, group, pid)
    np.maximum.at(most, group, pid)
    return (least < most)[group]


def owners(device: DeviceWork, calls: HostWork, launch: I64, steps: Steps) -> I64:
    """Return the place of the step that launched each piece of device work.

    If the launch is not on record, the work takes the step of the work before it on its stream: streams run
    in order. Before the first known one it belongs to no step.
    """
    if not steps.marked:
        return np.zeros(len(launch), np.int64)
    owner = np.full(len(launch), steps.none, np.int64)
    seen = launch >= 0
    owner[seen] = steps.at(calls.start_ns[launch[seen]])
    if seen.all():
        return owner
    order = np.lexsort((device.start_ns, device.stream, device.device))
    stream, unit = device.stream[order], device.device[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (stream[1:] != stream[:-1]) | (unit[1:] != unit[:-1])
    places = np.arange(len(order))
    head = np.maximum.accumulate(np.where(first, places, 0))
    last_seen = np.maximum.accumulate(np.where(seen[order], places, -1))
    takes = np.flatnonzero(~seen[order] & (last_seen >= head))
    owner[order[takes]] = owner[order[last_seen[takes]]]
    return owner
