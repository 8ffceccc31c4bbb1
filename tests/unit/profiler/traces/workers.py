"""Work for executors, importable by other processes: some of it ends its process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from shardtoll.profiler.traces.job.task import Task, TaskResult, run_task


def _name(task: Task) -> str:
    return Path(task.file.address).name


def _first_time(task: Task) -> bool:
    """Whether this task is run for the first time; a file beside the traces remembers it."""
    try:
        os.open(f"{task.file.address}.begun", os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    return True


def killed_once(task: Task) -> TaskResult:
    """Rank 1's first process is killed, as by the kernel when memory runs out."""
    if _name(task).startswith("rank1.") and _first_time(task):
        os.kill(os.getpid(), signal.SIGKILL)
    return run_task(task)


def killed_always(task: Task) -> TaskResult:
    """Whatever process takes rank 1 is killed."""
    if _name(task).startswith("rank1."):
        os.kill(os.getpid(), signal.SIGKILL)
    return run_task(task)


def out_of_memory(task: Task) -> TaskResult:
    """Rank 1 does not fit into memory."""
    if _name(task).startswith("rank1."):
        raise MemoryError
    return run_task(task)


def faulty(task: Task) -> TaskResult:
    """Rank 1 runs into a fault of ours."""
    if _name(task).startswith("rank1."):
        raise KeyError("what nobody thought of")
    return run_task(task)


def slow(task: Task) -> TaskResult:
    """Write the process's number beside the trace, then take long."""
    Path(f"{task.file.address}.pid").write_text(str(os.getpid()))
    time.sleep(60)
    return run_task(task)
