"""A process that has imported what ranks need and forks them: a rank starts in milliseconds.

One nursery lives as long as the tests' own process. It runs no operator, opens no group and starts no
thread, so each rank is a copy of an interpreter that has only imported; it refuses to fork otherwise.
Requests and answers are lines of JSON on its standard input and output. Ranks die with the nursery, and
the nursery when its input ends, that is with the tests.

Ranks forked from one nursery share its hash seed, unlike fresh interpreters.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = (
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.debug",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch._dynamo",
    "torch.profiler",
    "pyarrow.parquet",
    "shardtoll.analyzers",
    "shardtoll.profiler.live.session",
    "shardtoll.profiler.live.gradients",
)
PR_SET_PDEATHSIG = 1
POLL_S = 0.01


class Nursery:
    """The tests' end of a nursery: starts it at the first request and ends it with this process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[str] | None = None

    def run(
        self,
        task: str,
        outputs: Sequence[Path],
        logs: Sequence[Path],
        environments: Sequence[Mapping[str, str]],
        limit_s: float,
    ) -> list[int]:
        """Run one task on as many ranks as there are outputs; return their exit codes, as Popen has them."""
        process = self._started(environments[0])
        assert process.stdin is not None
        assert process.stdout is not None
        ranks = [
            {"output": str(output), "log": str(log), "environment": dict(environment)}
            for output, log, environment in zip(outputs, logs, environments, strict=True)
        ]
        process.stdin.write(json.dumps({"task": task, "limit_s": limit_s, "ranks": ranks}) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            self.close()
            raise AssertionError("the nursery died; its output is on the tests' standard error")
        codes: list[int] = json.loads(answer)
        return codes

    def _started(self, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.live.nursery"],
                # Else importing pyarrow starts a thread of its allocator.
                env={**environment, "JE_ARROW_MALLOC_CONF": "background_thread:false"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=self._root,
            )
            atexit.register(self.close)
        return self._process

    def close(self) -> None:
        """End the nursery and the ranks it still has."""
        process, self._process = self._process, None
        if process is not None:
            atexit.unregister(self.close)
            process.kill()
            process.communicate()


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _rank(task: str, rank: Mapping[str, Any]) -> NoReturn:
    """Become a rank in the forked child: its environment, its log, its work."""
    code = 1
    try:
        log = os.open(rank["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.clear()
        os.environ.update(rank["environment"])
        import numpy as np

        # Python's own generator reseeds itself after a fork, numpy's does not.
        np.random.seed()
        from tests.live.launch import work

        work(rank["output"], task)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - a forked child must never return into the nursery's loop
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(ranks: Sequence[int], limit_s: float) -> list[int]:
    """Wait for the ranks and kill those that are late, or all when the tests are gone."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + limit_s
    while len(codes) < len(ranks):
        # Nothing is sent before the answer: readable means that the other end is closed.
        ended = bool(select.select([0], [], [], POLL_S)[0]) or time.monotonic() > deadline
        for rank in ranks:
            if rank not in codes:
                if ended:
                    os.kill(rank, signal.SIGKILL)
                done, status = os.waitpid(rank, 0 if ended else os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
    return [codes[rank] for rank in ranks]


def main() -> None:
    """Import, then serve requests until the input ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    # A collection in a child would touch every object and copy its page: a sixth of a second in mid-step.
    gc.collect()
    gc.freeze()
    mine = os.getpid()
    for line in sys.stdin:
        request = json.loads(line)
        if sys.platform == "linux" and len(os.listdir("/proc/self/task")) != 1:
            raise SystemExit("the nursery has more than one thread: forking it is not safe")
        ranks = []
        for rank in request["ranks"]:
            child = os.fork()
            if child == 0:
                _die_with_parent(mine)
                _rank(request["task"], rank)
            ranks.append(child)
        codes = _wait(ranks, request["limit_s"])
        # The tests may be gone: then the input has ended too, and so does the loop.
        with contextlib.suppress(BrokenPipeError):
            os.write(1, (json.dumps(codes) + "\n").encode())


if __name__ == "__main__":
    main()
