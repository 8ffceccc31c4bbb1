"""Tasks in processes of this machine. A worker that dies takes no other's result with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Final

from shardtoll.profiler.traces.job.executor import DIED, MORE_MEMORY, run_apart
from shardtoll.profiler.traces.job.task import Task, TaskResult, Work

_AHEAD: Final = 2
"""Tasks handed out per worker: the next one waits while the other runs."""


class Pool:
    """A process pool. Processes are spawned, since a fork of a process with threads can hang."""

    def __init__(self, jobs: int) -> None:
        """`jobs`: processes at once."""
        self._jobs = jobs

    def run(self, work: Work, tasks: Sequence[Task]) -> Generator[TaskResult, None, None]:
        """Yield each result as it comes; see `executor.Executor`."""
        waiting = deque(tasks)
        while waiting:
            suspects: list[Task] = []
            yield from _round(work, waiting, suspects, min(self._jobs, len(waiting)))
            # One of these killed a worker, nobody knows which: each gets a process to itself.
            for task in suspects:
                again: list[Task] = []
                yield from _round(work, deque([task]), again, 1)
                for dead in again:
                    yield TaskResult(dead.file.address, reason=DIED, hint=MORE_MEMORY)


def _round(
    work: Work, waiting: deque[Task], suspects: list[Task], jobs: int
) -> Generator[TaskResult, None, None]:
    """Yield results until nothing waits or a worker dies; tasks then in flight become suspects."""
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, _begin)
    running: dict[Future[TaskResult], Task] = {}
    finished = broken = False
    try:
        while (waiting or running) and not broken:
            while waiting and len(running) < _AHEAD * jobs:
                try:
                    with _no_main():
                        future = pool.submit(run_apart, work, waiting[0])
                    running[future] = waiting[0]
                except BrokenProcessPool:
                    broken = True
                    break
                waiting.popleft()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                try:
                    result = future.result()
                except BrokenProcessPool:
                    suspects.append(task)
                    broken = True
                else:
                    yield result
        # The others of a broken pool all fail by themselves; a few may have finished before.
        for future, task in running.items():
            try:
                result = future.result()
            except BrokenProcessPool:
                suspects.append(task)
            else:
                yield result
        finished = True
    finally:
        if not finished:
            # Ctrl-C, or the reader of our results went away: what runs is of no use any more.
            for child in set(multiprocessing.active_children()) - others:
                child.kill()
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """Keep processes that are spawned now from running the caller's script again.

    Workers need nothing of it, and a script that calls us without `if __name__ == "__main__"` would
    end every one of them.
    """
    real = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = real


def _begin() -> None:
    """Set up a worker: Ctrl-C is the parent's to handle, and no worker outlives its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
