"""Work of one worker: read one trace file, make its rank's ledger, hand it back in memory or as a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from shardtoll.ledger.records.errors import ShardtollError
from shardtoll.profiler.traces.job import cache
from shardtoll.profiler.traces.job.entry import Entry, Facts, write

if TYPE_CHECKING:
    from shardtoll.profiler.traces.file.sources import TraceFile
    from shardtoll.profiler.traces.file.trace_columns import Trace
    from shardtoll.profiler.traces.rank.rank import Ranked

Read: TypeAlias = "Callable[[TraceFile], Trace]"
Analyse: TypeAlias = "Callable[[Trace], Ranked]"


@dataclass(frozen=True, slots=True)
class Options:
    """A worker's facts in addition to the file."""

    digest: str
    """Digest of all other things that a result depends on: `cache.digest`."""
    kernels: str | None = None
    """A table of kernel names of the user's own; workers on other hosts must see the same file."""
    alone: bool = False
    """The job's only file: if it does not say which rank it is of, rank 0 is a safe guess."""
    part: int = 0
    """Which of the file's devices, if each is a rank of its own."""

    def of_part(self, part: int) -> Options:
        """Return the options for another device of the same file."""
        return replace(self, part=part, digest=f"{self.digest} part {part}")


class Task(Struct, frozen=True):
    """One trace to read; small, and can be sent to any process."""

    file: TraceFile
    folder: str | None
    """Folder of the result as a file; None: it stays in this process's memory."""
    options: Options


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of one trace, or where it lies, or why there is none."""

    address: str
    path: str | None = None
    """The file of a result that was made in another process."""
    entry: Entry | None = None
    reason: str | None = None
    """One line; None if there is a result."""
    hint: str | None = None
    """Advice to the user about it."""


Work: TypeAlias = Callable[[Task], TaskResult]
"""A module's function: other processes import it by name."""


def run_task(task: Task) -> TaskResult:
    """Read the task's trace; what an executor runs."""
    return rank_task(task)


def rank_task(task: Task, *, read: Read | None = None, analyse: Analyse | None = None) -> TaskResult:
    """Return the rank's result, written to `task.folder` if there is one, or why the trace cannot be read.

    `read` and `analyse` replace the reader and the analysis of a rank. The executor reports that memory ran
    out.
    """
    file, options = task.file, task.options
    try:
        trace, parts = _part((read or _reader(file))(file), options)
        if options.alone and (trace.meta.rank is None or not _is_told(trace)):
            _assume_rank(trace, parts)
        ranked = (analyse or _analysis(options))(trace)
    except ShardtollError as error:
        return TaskResult(file.address, reason=one_line(error.message), hint=one_line(error.hint))
    facts = Facts(
        address=file.address,
        world_size=trace.meta.world_size,
        start_ns=trace.start_ns,
        end_ns=trace.end_ns,
        events=trace.events,
        parts=parts,
    )
    made = Entry(facts, ranked.ledger, ranked.unsized)
    if task.folder is None:
        return TaskResult(file.address, entry=made)
    path = cache.entry_path(Path(task.folder), file, options.digest)
    try:
        write(path, made)
    except OSError as error:
        why = f"its result cannot be written to {task.folder} ({error.strerror or error})"
        hint = "make room there, or set SHARDTOLL_CACHE to another folder"
        return TaskResult(file.address, reason=why, hint=hint)
    return TaskResult(file.address, path=str(path), entry=made)


def one_line(text: str) -> str:
    """Return the text without line breaks."""
    return " ".join(text.split())


def _part(trace: Trace, options: Options) -> tuple[Trace, int]:
    """Return the trace of one of the file's devices, and how many of them are ranks."""
    from shardtoll.profiler.traces.collectives.devices import part_of, parts_of

    parts = parts_of(trace, alone=options.alone)
    return (part_of(trace, parts, options.part), len(parts)) if parts else (trace, 1)


def _is_told(trace: Trace) -> bool:
    """Whether the file states its rank, or its content agrees with the rank in its name.

    Among other files a number in the name counts ranks; a lone `profile_bs_512.json` may count anything.
    """
    if all(kind != "rank-from-name" for kind, _ in trace.notices):
        return True
    from shardtoll.profiler.traces.file.meta import names_rank

    rank = trace.meta.rank
    if any(rank in args.ranks for args in trace.comm_args if args.ranks):
        return True
    return _communicates(trace) and names_rank(trace.meta.address)


def _communicates(trace: Trace) -> bool:
    from shardtoll.profiler.traces.collectives.said import said

    libraries = ("nccl", "hccl")
    return len(said(trace).comm) > 0 or any(
        library in name.lower() for name in trace.names for library in libraries
    )


def _assume_rank(trace: Trace, parts: int) -> None:
    """Take a lone trace as rank 0; as all of its job, if nothing in it is of a job of several."""
    trace.notices[:] = [notice for notice in trace.notices if notice[0] != "rank-from-name"]
    trace.meta = replace(trace.meta, rank=0)
    if parts == 1 and trace.meta.backend is None and not trace.meta.groups and not _communicates(trace):
        trace.meta = replace(trace.meta, world_size=trace.meta.world_size or 1)
        return
    trace.notices.append(
        ("rank-assumed", f"{trace.meta.address} does not say which rank it is of: rank 0 assumed")
    )


def _reader(file: TraceFile) -> Read:
    from shardtoll.profiler.traces.file.sources import is_database

    if is_database(file):
        from shardtoll.profiler.traces.nsys.read_nsys import read_nsys

        return read_nsys
    from shardtoll.profiler.traces.file.read import read_trace

    return read_trace


def _analysis(options: Options) -> Analyse:
    from shardtoll.profiler.traces.collectives.kernels import load_table
    from shardtoll.profiler.traces.rank.rank import ranked

    table = load_table(None if options.kernels is None else Path(options.kernels))
    return lambda trace: ranked(trace, table)
