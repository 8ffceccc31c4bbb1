"""Ranks of one machine for the benchmarks of replay, forked from a process that has run no operator yet."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from shardtoll.cli.jobs.ranks import free_port


def started(
    work: Callable[..., None],
    ranks: int,
    arguments: tuple[Any, ...],
    environment: Callable[[int], Mapping[str, str]] = lambda _: {},
) -> list[int]:
    """Start `work(*arguments)` on that many ranks of one job; return their processes."""
    port = free_port()
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            place |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            _rank(work, arguments, {**place, **environment(rank)})
        pids.append(pid)
    return pids


def ended(pids: Sequence[int], most_s: float) -> None:
    """Wait for these processes. Raises RuntimeError where one fails or all together take longer."""
    deadline, codes = time.monotonic() + most_s, dict[int, int]()
    while len(codes) < len(pids) and time.monotonic() < deadline:
        for pid in pids:
            if pid not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    for pid in pids:
        if pid not in codes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if len(codes) < len(pids) or any(codes.values()):
        raise RuntimeError(f"{len(pids)} ranks ended with {sorted(codes.values())}")


def _rank(work: Callable[..., None], arguments: tuple[Any, ...], environment: Mapping[str, str]) -> NoReturn:
    code = 1
    try:
        os.environ.update(environment)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        work(*arguments)
        code = 0
    except BaseException:  # noqa: BLE001 - a forked rank must never return into the benchmark
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # Gloo's threads can abort an interpreter that shuts down in the usual way.
        os._exit(code)
