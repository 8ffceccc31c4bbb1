"""Starts the ranks of a script on this machine with torch's own launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

_NO_HEARTBEAT: Final = ("--rdzv-conf", "keep_alive_interval=31536000")
"""A year in seconds: ranks of one machine need no heartbeat.

torch's launcher leaves its heartbeat's thread running when a signal ends it. A thread that is in a heartbeat
while the launcher's objects go writes "Exception ignored in:" into the output, or is cut off in mid-line.
"""


class Stopped(Exception):
    """This process was told to end by the signal `number`; its ranks have ended too."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def start_ranks(ranks: int, module: str, arguments: Sequence[str]) -> int:
    """Run `python -m module arguments` on so many ranks; return the exit code of the first that failed, or 0.

    A rank that a signal killed counts as shells do, 128 and the signal's number, and one line on stderr
    names it; what else the launcher logs is left out, as the ranks tell their own errors. Several ranks
    have one OpenMP thread each unless OMP_NUM_THREADS is set. Raises Stopped where this process was told to
    end, after its ranks have.
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
            return int(failure.exitcode)
        sys.stderr.write(f"shardtoll: rank {rank} was ended by {signal.Signals(-failure.exitcode).name}\n")
        return 128 - int(failure.exitcode)
    return 0


@contextmanager
def _silent() -> Iterator[None]:
    """Drop what this process logs: it only waits for its ranks, and they log for themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
