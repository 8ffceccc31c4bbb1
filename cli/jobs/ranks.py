"""Starts the ranks of a job on this machine, without torchrun's agent: quick, and with a time limit."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, Protocol

from shardtoll.ledger import ShardtollError

_POLL_S: Final = 0.05
_LOWEST: Final = 10_000
_USUAL_LEAST: Final = 32_768
_TRIES: Final = 32
_PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class JobError(ShardtollError):
    """A job started on this machine failed."""


def free_port() -> int:
    """Return a port of this machine that was free a moment ago.

    Below the ports that outgoing connections get by themselves, if there are such. One of another job's many
    connections would take it before this job listens.
    """
    chosen = random.SystemRandom()
    for port in (*(chosen.randrange(_LOWEST, _least_of_connections()) for _ in range(_TRIES)), 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise JobError("no port of this machine is free", "end the jobs that hold them")


def _least_of_connections() -> int:
    """Return the lowest port that outgoing connections get; the usual one if the system does not say."""
    try:
        least = int(_PORT_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        least = _USUAL_LEAST
    return max(least, _LOWEST + 1)


def job_environment(ranks: int) -> dict[str, str]:
    """Return the environment that all ranks of a job on this machine share."""
    return {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        # One compute thread per rank: the ranks share this machine's cores as GPUs would not.
        "OMP_NUM_THREADS": "1",
        "KINETO_LOG_LEVEL": "99",
    }


class RunsJobs(Protocol):
    """Runs `python -m module arguments` on ranks of this machine: `run_job`, or `Forked.run_module`."""

    def __call__(
        self, module: str, arguments: Sequence[str], *, ranks: int, limit_s: float, log: Path
    ) -> None:
        """Return when all ranks have ended; JobError when one fails or the limit passes."""


def run_job(module: str, arguments: Sequence[str], *, ranks: int, limit_s: float, log: Path) -> None:
    """Run `python -m module arguments` as a job of `ranks` processes; their output goes to `log`.

    Raises JobError when a rank fails or the limit passes; no process is left behind either way.
    """
    environment = job_environment(ranks)
    log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        processes = [
            stack.enter_context(_rank(module, arguments, environment, rank, outputs[rank]))
            for rank in range(ranks)
        ]
        try:
            failed = _watch(processes, time.monotonic() + limit_s)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
        text = "".join(_text(rank, output) for rank, output in enumerate(outputs))
    log.write_text(text, encoding="utf-8")
    if failed is not None:
        rank, why = failed
        raise JobError(f"rank {rank} of {module} {why}", f"its output is in {log}")


def _rank(
    module: str, arguments: Sequence[str], environment: dict[str, str], rank: int, output: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )


def _watch(processes: Sequence[subprocess.Popen[bytes]], deadline_s: float) -> tuple[int, str] | None:
    """Wait for all; return the first failure, as soon as there is one."""
    waiting = set(range(len(processes)))
    while waiting:
        for rank in sorted(waiting):
            code = processes[rank].poll()
            if code is None:
                continue
            waiting.discard(rank)
            if code != 0:
                return rank, f"ended with exit code {code}"
        if waiting and time.monotonic() > deadline_s:
            return min(waiting), "did not finish in time"
        time.sleep(_POLL_S)
    return None


def _text(rank: int, output: IO[bytes]) -> str:
    output.seek(0)
    return f"--- rank {rank}\n{output.read().decode(errors='replace')}"
