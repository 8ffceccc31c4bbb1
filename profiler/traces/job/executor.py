"""How tasks are run: the interface, and the plainest way."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from shardtoll.profiler.traces.job.task import Task, TaskResult, Work, one_line

OUT_OF_MEMORY: Final = "there was not enough memory to read it"
DIED: Final = "the process that read it died twice, as when the machine runs out of memory"
FAILED: Final = "it could not be analysed"
TELL_US: Final = "this is our fault, not the file's: please report it; other traces are not affected"
MORE_MEMORY: Final = "report it on a machine with more memory, or with fewer --jobs"


class Executor(Protocol):
    """Runs one task a file, somewhere."""

    def run(self, work: Work, tasks: Sequence[Task]) -> Generator[TaskResult, None, None]:
        """Yield each task's result as it comes, in any order. No task is lost.

        A task whose worker dies is tried once more, then returned as a result with a reason. Closing the
        iterator ends what still runs.
        """
        ...


class InProcess:
    """One task after the other, here."""

    def run(self, work: Work, tasks: Sequence[Task]) -> Generator[TaskResult, None, None]:
        """Yield each task's result, in order."""
        for task in tasks:
            yield run_here(work, task)


def run_here(work: Work, task: Task) -> TaskResult:
    """Run one task in this process; whatever a trace does to us, the others are not lost with it."""
    try:
        return work(task)
    except MemoryError:
        return TaskResult(task.file.address, reason=OUT_OF_MEMORY, hint=MORE_MEMORY)
    except Exception as error:  # noqa: BLE001 - files come from outside, and a thousand others wait
        what = one_line(f"{type(error).__name__}: {error}")
        return TaskResult(task.file.address, reason=f"{FAILED} ({what})", hint=TELL_US)


def run_apart(work: Work, task: Task) -> TaskResult:
    """Run one task for another process: its result travels as a file."""
    return replace(run_here(work, task), entry=None)


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
