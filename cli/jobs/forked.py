"""Many short jobs on this machine, one after the other: their ranks are forked from one process."""

from __future__ import annotations

import json
import os
import runpy
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from shardtoll.cli.jobs.fork_server import LATE, START_LIMIT_S
from shardtoll.cli.jobs.ranks import JobError, job_environment

_GRACE_S: Final = 10.0
"""Time beyond a job's own limit in which the server must kill its ranks and say so."""
_THREADS: Final = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "BLIS_NUM_THREADS"),
    "MKL_NUM_THREADS",
)
"""How many threads libraries of numpy and torch start."""


class Forked:
    """The server of one command: started at the first job, ended with the context."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the server and wait until it has imported what ranks need; it does nothing if the server runs
        already.

        Raises JobError when it cannot start.
        """
        if self._process is not None:
            return
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "shardtoll.cli.jobs.fork_server"],
                env={
                    **os.environ,
                    # Else importing pyarrow starts a thread of its allocator.
                    "JE_ARROW_MALLOC_CONF": "background_thread:false",
                    # A process with threads is not forked.
                    **dict.fromkeys(_THREADS, "1"),
                    "KINETO_LOG_LEVEL": "99",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for the command, which then ends this.
                start_new_session=True,
            )
        self._answer(START_LIMIT_S)

    def run(
        self,
        task: tuple[str, str, Sequence[Any]],
        environments: Sequence[Mapping[str, str]],
        *,
        limit_s: float,
        log: Path,
    ) -> None:
        """Call `task` (module, function, arguments) on one rank for each of `environments`. The rank gets its
        environment and the variables of torch's groups; the ranks' output goes to `log`.

        Raises JobError, with the place of the output, if a rank fails or the limit passes. No rank is left
        behind either way.
        """
        self.start()
        ranks = len(environments)
        common = job_environment(ranks)
        log.parent.mkdir(parents=True, exist_ok=True)
        parts = [log.with_name(f"{log.name}.{rank}") for rank in range(ranks)]
        asked: list[dict[str, Any]] = [
            {
                "task": list(task),
                "log": str(parts[rank]),
                "environment": {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **environments[rank]},
            }
            for rank in range(ranks)
        ]
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            request = {"limit_s": limit_s, "end_together": True, "ranks": asked}
            process.stdin.write((json.dumps(request) + "\n").encode())
            process.stdin.flush()
        except OSError as error:
            self.close()
            raise JobError("the process that forks ranks ended", f"its output is in {self._log}") from error
        # The server holds them to the limit, which begins when they have started.
        codes = self._answer(START_LIMIT_S + limit_s + _GRACE_S)
        text = [_taken(part, rank) for rank, part in enumerate(parts)]
        log.write_text("".join(text), encoding="utf-8")
        for rank, code in enumerate(codes):
            if code != 0:
                why = (
                    f"did not finish in time ({limit_s:.0f} s)"
                    if code == LATE
                    else f"ended with exit code {code}"
                )
                raise JobError(f"rank {rank} {why}", f"its output is in {log}")

    def run_module(
        self, module: str, arguments: Sequence[str], *, ranks: int, limit_s: float, log: Path
    ) -> None:
        """Run `python -m module arguments` as a job of `ranks` processes, as `run_job` does."""
        self.run((__name__, "be_main", [module, *arguments]), [{}] * ranks, limit_s=limit_s, log=log)

    def _answer(self, limit_s: float) -> list[int]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + limit_s
        ready = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
        line = process.stdout.readline() if ready else b""
        if not line:
            self.close()
            why = "ended" if ready else "does not answer"
            raise JobError(f"the process that forks ranks {why}", f"its output is in {self._log}")
        codes: list[int] = json.loads(line)
        return codes

    def close(self) -> None:
        """End the server and the ranks it still has; the next job starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def be_main(module: str, *arguments: str) -> None:
    """Be `python -m module arguments` in a forked rank."""
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _taken(part: Path, rank: int) -> str:
    """Return the output of a rank, its file removed."""
    written = part.read_text(encoding="utf-8", errors="replace") if part.exists() else ""
    part.unlink(missing_ok=True)
    return f"--- rank {rank}\n{written}"
