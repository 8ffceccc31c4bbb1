"""Whose export it is: rank and size of the job, from the file's facts about its processes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from shardtoll.profiler.traces.file.trace_columns import I32, Meta
from shardtoll.profiler.traces.nsys import about
from shardtoll.profiler.traces.nsys.ranges import Ranges
from shardtoll.profiler.traces.nsys.state import Read


@dataclass(frozen=True, slots=True)
class Identity:
    """A file's facts about its processes; None if unknown."""

    process: str
    """The one that did most, or the only one."""
    rank: int | None
    """None too for a file of several processes: each has its own."""
    world_size: int | None
    process_ranks: tuple[tuple[str, int], ...]
    host: str | None
    notices: tuple[about.Notice, ...]


def identified(read: Read, working: Collection[str], ranges: Ranges) -> Identity:
    """Return the identity of a file; `working`: its processes with device work, the busiest first."""
    threads = read.threads
    names = [threads.process_name(key) for key in threads.processes]
    by_mpi = {threads.process_key(thread): rank for thread, rank in about.mpi_ranks(read.database).items()}
    members = {names[number]: member for number, member in ranges.nccl.ranks().items()}
    placed = {name: member.rank for name, member in members.items() if member.rank is not None}
    host, variables = about.environment(read.database)
    first = next(iter(working), names[0] if names else "")
    several = tuple(sorted((by_mpi or placed).items()))
    if len(working) > 1:
        # The environment describes the launcher, not the processes it started.
        return Identity(first, None, None, several, host, ())
    place = (placed[first], members[first].size) if first in placed else None
    rank, notices = about.rank_of(read.where, variables, by_mpi.get(first), place)
    size = about.world_size(variables)
    if rank is None or size is None or rank >= size:
        size = None
    return Identity(first, rank, size, several, host, tuple(notices))


def meta_of(read: Read, identity: Identity, ranges: Ranges, device: I32, base_ns: int) -> Meta:
    """Return what is known of the job; `device`: number of each piece of work's device in its process."""
    devices = about.gpus(read.database)
    used = device[device >= 0]
    number = int(np.bincount(used).argmax()) if len(used) and int(used.max()) < 1 << 16 else 0
    gpu = about.gpu_of(read.database, devices, number, identity.process)
    nccl = bool(ranges.nccl.calls) or any("nccl" in name.lower() for name in read.names)
    return Meta(
        address=read.where,
        rank=identity.rank,
        world_size=identity.world_size,
        backend="nccl" if nccl else None,
        device=gpu.name,
        torch=None,
        host=identity.host,
        base_ns=base_ns,
        groups=ranges.nccl.groups(identity.world_size),
        device_memory_bytes=gpu.memory_bytes,
        device_sms=gpu.sms,
        device_capability=gpu.capability,
        devices=len(devices) or None,
        process_ranks=identity.process_ranks,
    )
