"""What one worker does: read one trace file, make its rank's ledger, leave it as a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from shardtoll.ledger.errors import ShardtollError
from shardtoll.ledger.ledger import Ledger
from shardtoll.profiler.traces import cache, entry

if TYPE_CHECKING:
    from shardtoll.profiler.traces.sources import TraceFile
    from shardtoll.profiler.traces.trace import Trace

Read: TypeAlias = "Callable[[TraceFile], Trace]"
Analyse: TypeAlias = "Callable[[Trace], Ledger]"


@dataclass(frozen=True, slots=True)
class Options:
    """What a worker must know beside the file."""

    digest: str
    """Of all that a result depends on beside the file: `cache.digest`."""
    kernels: str | None = None
    """A table of kernel names of the user's own; workers on other hosts must see the same file."""
    alone: bool = False
    """The job's only file: where it does not say which rank it is of, rank 0 is a safe guess."""
    world_size: int | None = None
    """Ranks in the job, for traces that do not say."""


@dataclass(frozen=True, slots=True)
class Task:
    """One trace to read; small, and can be sent to any process."""

    file: TraceFile
    folder: str
    """Where the result goes."""
    options: Options


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Where the result of one trace lies, or why there is none."""

    address: str
    path: str | None
    reason: str | None = None
    """One line; None when `path` is not."""
    hint: str | None = None
    """What the user can do about it."""


Work: TypeAlias = Callable[[Task], TaskResult]
"""A module's function: other processes import it by name."""


def run_task(task: Task) -> TaskResult:
    """Read the task's trace; what an executor runs."""
    return rank_task(task.file, Path(task.folder), task.options)


def rank_task(
    file: TraceFile,
    folder: Path,
    options: Options,
    *,
    read: Read | None = None,
    analyse: Analyse | None = None,
) -> TaskResult:
    """Write the rank's ledger into `folder` and return where, or the reason why it cannot be read.

    `read` and `analyse` replace the reader and the analysis of a rank. Running out of memory is for
    the executor to tell.
    """
    try:
        trace = (read or _reader())(file)
        if options.alone and trace.meta.rank is None:
            _assume_rank(trace)
        told = trace.meta.world_size
        if told is None:
            trace.meta = replace(trace.meta, world_size=options.world_size)
        ledger = (analyse or _analysis(options))(trace)
    except ShardtollError as error:
        return TaskResult(file.address, None, one_line(error.message), one_line(error.hint))
    facts = entry.Facts(
        address=file.address,
        world_size=told,
        start_ns=trace.start_ns,
        end_ns=trace.end_ns,
        events=trace.events,
    )
    path = cache.place(folder, file, options.digest)
    try:
        entry.write(path, entry.Entry(facts, ledger))
    except OSError as error:
        why = f"its result cannot be written to {folder} ({error.strerror or error})"
        return TaskResult(
            file.address, None, why, "make room there, or set SHARDTOLL_CACHE to another folder"
        )
    return TaskResult(file.address, str(path))


def one_line(text: str) -> str:
    """Return the text without line breaks."""
    return " ".join(text.split())


def _assume_rank(trace: Trace) -> None:
    trace.meta = replace(trace.meta, rank=0)
    trace.notices.append(
        ("rank-from-name", f"{trace.meta.address} does not say which rank it is of: rank 0 assumed")
    )


def _reader() -> Read:
    from shardtoll.profiler.traces.read import read_trace

    return read_trace


def _analysis(options: Options) -> Analyse:
    from shardtoll.profiler.traces.kernels import load_table
    from shardtoll.profiler.traces.rank import rank_ledger

    table = load_table(None if options.kernels is None else Path(options.kernels))
    return lambda trace: rank_ledger(trace, table)
