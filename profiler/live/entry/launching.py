"""Starts the ranks of a script on this machine with torch's own launcher."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

_NO_HEARTBEAT: Final = ("--rdzv-conf", "keep_alive_interval=31536000")
"""A year in seconds: ranks of one machine need no heartbeat.

torch's launcher leaves its heartbeat's thread running when a signal ends it. A thread may be in a heartbeat
while the launcher's objects go. It then writes "Exception ignored in:" into the output, or is cut off in
mid-line.
"""


class Stopped(Exception):
    """A signal `number` asked this process to end; its ranks have ended too."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


@dataclass(frozen=True, slots=True)
class Outcome:
    """How started ranks ended."""

    code: int
    """Exit code of the first that failed, or 0. One that a signal ended counts as in shells: 128 and more."""
    ended_by: str | None = None
    """Which rank a signal ended, as `rank 1 was ended by SIGKILL`; None if no signal did."""


def start_ranks(ranks: int, module: str, arguments: Sequence[str]) -> Outcome:
    """Run `python -m module arguments` on so many ranks; return how they ended.

    The launcher's log is left out: ranks report their own errors, and the caller reports a signal. Several
    ranks have one OpenMP thread each unless OMP_NUM_THREADS is set. Raises Stopped if a signal asked this
    process to end, after its ranks have.
    """
    if ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        with _silent():
            main(["--standalone", *_NO_HEARTBEAT, "--nproc-per-node", str(ranks), "-m", module, *arguments])
    except SignalException as error:
        raise Stopped(int(error.sigval)) from error
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            return Outcome(int(failure.exitcode))
        said = f"rank {rank} was ended by {signal.Signals(-failure.exitcode).name}"
        return Outcome(128 - int(failure.exitcode), said)
    return Outcome(0)


@contextmanager
def _silent() -> Iterator[None]:
    """Drop this process's log messages: it only waits for its ranks, and they log for themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
