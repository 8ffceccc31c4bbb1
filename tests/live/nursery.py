"""The tests' process that has imported what ranks need and forks them: a rank starts in milliseconds.

One nursery, a fork server of the command line's, lives as long as the tests' own process. Ranks forked from
it share its hash seed, unlike fresh interpreters.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

MORE = ("torch.distributed.tensor.debug", "tests.live.preloaded")
"""Modules that tests need beside what the command line's ranks do."""


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
        ranks = [
            {
                "task": ("tests.live.launch", "work", (str(output), task)),
                "log": str(log),
                "environment": dict(environment),
            }
            for output, log, environment in zip(outputs, logs, environments, strict=True)
        ]
        request = {"limit_s": limit_s, "end_together": False, "ranks": ranks}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return self._answer(process)

    def _started(self, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "shardtoll.cli.jobs.fork_server", *MORE],
                # Else importing pyarrow starts a thread of its allocator.
                env={**environment, "JE_ARROW_MALLOC_CONF": "background_thread:false"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=self._root,
            )
            atexit.register(self.close)
            # It says when it has imported everything.
            self._answer(self._process)
        return self._process

    def _answer(self, process: subprocess.Popen[str]) -> list[int]:
        assert process.stdout is not None
        answer = process.stdout.readline()
        if not answer:
            self.close()
            raise AssertionError("the nursery died; its output is on the tests' standard error")
        codes: list[int] = json.loads(answer)
        return codes

    def close(self) -> None:
        """End the nursery and the ranks it still has."""
        process, self._process = self._process, None
        if process is not None:
            atexit.unregister(self.close)
            process.kill()
            process.communicate()
