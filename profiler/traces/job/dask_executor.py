"""Tasks on an existing Dask cluster. Only addresses and paths travel: workers share a file system with us."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator, Sequence
from typing import Any, Final

from shardtoll.ledger.records.errors import UsageError
from shardtoll.profiler.traces.job.executor import DIED, MORE_MEMORY, run_apart
from shardtoll.profiler.traces.job.task import Task, TaskResult, Work, one_line

ANSWER_S: Final = 10.0
"""How long a scheduler may take to answer."""
IDLE_S: Final = 60.0
"""How long the cluster may be without any worker: one that died takes a while to be back on busy cores."""
_POLL_S: Final = 2.0
_AHEAD: Final = 2_000
"""Tasks handed to the scheduler at once."""


class Dask:
    """The cluster behind a scheduler's address."""

    def __init__(self, address: str, *, answer_s: float = ANSWER_S, idle_s: float = IDLE_S) -> None:
        """`address`: as `tcp://10.0.0.1:8786`. Raises UsageError if Dask is not installed."""
        try:
            import distributed
        except ImportError as error:
            raise UsageError(
                "--dask needs Dask, which is not installed", "pip install 'shardtoll[dask]'"
            ) from error
        self._distributed: Any = distributed
        self._address = address
        self._answer_s = answer_s
        self._idle_s = idle_s

    def run(self, work: Work, tasks: Sequence[Task]) -> Generator[TaskResult, None, None]:
        """Yield each result as it comes; see `executor.Executor`.

        Raises UsageError if the scheduler does not answer, goes away, or has no workers.
        """
        with self._client() as client:
            died = []
            for task, result in self._pass(client, work, tasks, _AHEAD):
                if result.reason == DIED:
                    died.append((task, result))
                else:
                    yield result
            # Dask blames all tasks that a dead worker had been given: one of these is the cause, not each.
            if len(died) > 1:
                died = list(self._pass(client, work, [task for task, _ in died], 1))
            yield from (result for _, result in died)

    def _pass(
        self, client: Any, work: Work, tasks: Sequence[Task], ahead: int
    ) -> Generator[tuple[Task, TaskResult], None, None]:
        """Run each task, at most `ahead` of them given to the scheduler at once."""
        waiting = list(reversed(tasks))
        running: dict[Any, Task] = {}
        seen_s = time.monotonic()
        try:
            while waiting or running:
                while waiting and len(running) < ahead:
                    task = waiting.pop()
                    # A worker's death is no fault of the task's: one more worker may try.
                    running[client.submit(run_apart, work, task, pure=False)] = task
                done = self._done(client, list(running))
                for future in done:
                    result = self._result(future, running[future])
                    if result is None:
                        continue
                    yield running.pop(future), result
                    # Released at once: the scheduler forgets it, however many there are.
                    future.release()
                if done or self._workers(client):
                    seen_s = time.monotonic()
                elif time.monotonic() - seen_s > self._idle_s:
                    raise UsageError(
                        f"the Dask cluster at {self._address} has no workers",
                        "start some with `dask worker ADDRESS`, or leave --dask out",
                    )
        finally:
            if running:
                client.cancel(list(running), force=True)

    def _client(self) -> Any:
        try:
            if not self._address:  # Dask would start a cluster of its own
                raise ValueError("the address is empty")
            client = self._distributed.Client(
                self._address, timeout=self._answer_s, set_as_default=False, name="shardtoll"
            )
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {self._address}",
                f"name the address that `dask scheduler` prints, as tcp://10.0.0.1:8786 ({_why(error)})",
            ) from error
        return client

    def _done(self, client: Any, futures: list[Any]) -> list[Any]:
        """Return the futures that are done, after a moment at most."""
        with client.as_current(), contextlib.suppress(asyncio.TimeoutError):
            self._distributed.wait(futures, timeout=_POLL_S, return_when="FIRST_COMPLETED")
        if client.status not in ("running", "connecting"):
            raise self._lost()
        return [future for future in futures if future.done()]

    def _lost(self) -> UsageError:
        return UsageError(
            f"the Dask scheduler at {self._address} went away", "start it again, or leave --dask out"
        )

    def _workers(self, client: Any) -> bool:
        try:
            return bool(client.nthreads())
        except (OSError, asyncio.TimeoutError) as error:
            raise self._lost() from error

    def _result(self, future: Any, task: Task) -> TaskResult | None:
        """Return a done future's result; None if the worker that held it has died since: it runs again."""
        status = future.status
        if status == "cancelled":
            raise self._lost()
        if status not in ("finished", "error"):
            return None
        # Waits if the result is lost only now.
        error = future.exception()
        if error is None:
            result: TaskResult = future.result()
            return result
        if isinstance(error, self._distributed.KilledWorker):
            return TaskResult(task.file.address, reason=DIED, hint=MORE_MEMORY)
        return TaskResult(
            task.file.address,
            reason=f"the Dask worker could not read it ({_why(error)})",
            hint="give workers the same shardtoll and the same file system as this machine",
        )


def _why(error: BaseException) -> str:
    text = one_line(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
