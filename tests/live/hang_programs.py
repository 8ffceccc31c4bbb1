"""Ranks that hang on purpose, and end themselves once that has been looked at.

Rank 0 looks while the job hangs: the answer of `shardtoll hang` is written beside the run, for the test.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.cli.inputs.flights import flights_of
from shardtoll.ledger.answers.hang import hang_to_json
from shardtoll.ledger.records.flight import RankFlight
from shardtoll.profiler import audit
from shardtoll.samples.hangs.programs import PROGRAMS

HANG_AFTER_S = 60.0
"""None of the programs needs it: a rank that the machine keeps waiting must not be what is named."""
POLL_S = 0.25
MOST_S = 60.0
LEAVE_S = 2.0
"""Rank 0 waits this long for others to leave before it; some are gone already."""
STEPS = 12


def run(name: str, folder: str, level: str = "schedule") -> None:
    """Run one of the samples; where it hangs, end this rank after rank 0 has looked."""
    hang(PROGRAMS[name], folder, level)


def hang(
    make: Callable[[], Callable[[int], None]],
    folder: str,
    level: str = "schedule",
    after_s: float = HANG_AFTER_S,
) -> None:
    """Run a program's steps under an audit; the process ends once the job is said to hang."""
    rank, out, over = dist.get_rank(), Path(folder, "run"), threading.Event()
    watching = threading.Thread(
        target=_look if rank == 0 else _follow, args=(Path(folder), over), daemon=True
    )
    watching.start()
    step = make()
    try:
        with audit(out=out, level=level, hang_after_s=after_s, gather_limit_s=2.0) as session:  # type: ignore[arg-type]
            for number in range(STEPS):
                with session.step():
                    step(number)
    finally:
        # Others wait for this rank, and its connections close as its process ends.
        if sys.exc_info()[0] is not None:
            _until(Path(folder, "looked"))
            _leave(Path(folder))
        over.set()
        watching.join()


def _look(folder: Path, over: threading.Event) -> None:
    deadline = time.monotonic() + MOST_S
    named: tuple[object, ...] | None = None
    while time.monotonic() < deadline:
        if over.wait(POLL_S):
            return
        flights, now_ns, _ = flights_of(folder / "run") if (folder / "run").is_dir() else ([], 0, [])
        answer = diagnose(flights, now_ns)
        before, named = named, (answer.why, *(each.ranks for each in answer.findings))
        # As ranks fail one after the other, a look between two of them sees the first one only.
        settled = answer.hang and before == named and _hangs_if_killed(flights, now_ns)
        if len(flights) == dist.get_world_size() and settled:
            (folder / "live.json").write_text(json.dumps(hang_to_json(answer)))
            # The last heartbeat of a killed rank is that much older than its end.
            time.sleep(max(each.beat_every_ns or 0 for each in flights) / 1e9)
            break
    (folder / "looked").touch()
    # The job's store ends with this process, and a rank that waits in it would fail then.
    deadline = time.monotonic() + LEAVE_S
    while len(list(folder.glob("left.*"))) < dist.get_world_size() - 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    os._exit(0)


def _hangs_if_killed(flights: Sequence[RankFlight], now_ns: int) -> bool:
    """Whether the files would show the hang if all ranks were killed now: a send's needs a heartbeat."""
    return diagnose([replace(each, life="dead") for each in flights], now_ns).hang


def _follow(folder: Path, over: threading.Event) -> None:
    _until(folder / "looked", over)
    if not over.is_set():
        _leave(folder)


def _leave(folder: Path) -> NoReturn:
    """End this process, and let rank 0 know just before."""
    (folder / f"left.{os.getpid()}").touch()
    os._exit(0)


def _until(path: Path, over: threading.Event | None = None) -> None:
    deadline = time.monotonic() + MOST_S
    while not path.exists() and time.monotonic() < deadline:
        if over is None:
            time.sleep(0.05)
        elif over.wait(0.05):
            return
