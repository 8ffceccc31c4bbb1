"""What a rank's flight file costs a collective, next to writing the same entry with one system call."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from harness import Spread

from shardtoll.ledger.disk.flight_layout import ENTRY
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.pending import Message, PendingCollective, Place
from shardtoll.profiler.live.flight.flight import Flight

CALLS: Final = 2_000
AIM_US: Final = 1.0


def figures(repeats: int) -> dict[str, float | None]:
    """Return microseconds of the training thread per collective: issued, returned, waited for, done."""
    noted, written, nothing = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        flight = Flight(Groups("cpu"), 0)
        flight.open(Path(folder), 2, "run", hang_after_s=None, beat_s=None)
        file = os.open(Path(folder, "peer"), os.O_RDWR | os.O_CREAT)
        for _ in range(repeats):
            nothing.append(_timed(_nothing))
            noted.append(_timed(lambda: _noted(flight)))
            written.append(_timed(lambda: _written(file)))
        os.close(file)
        flight.end("closed")
    loop = Spread.of(nothing).median
    ours = Spread.of([value - loop for value in noted])
    peer = Spread.of([value - loop for value in written])
    return {
        "flight.collective_us": ours.median,
        "flight.collective_us_q1": ours.low,
        "flight.collective_us_q3": ours.high,
        "flight.pwrite_us": peer.median,
        "flight.over_pwrite": ours.median / peer.median,
    }


def _timed(work: Callable[[], None]) -> float:
    begun_ns = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - begun_ns) / CALLS / 1e3


def _nothing() -> None:
    for _ in range(CALLS):
        pass


def _noted(flight: Flight) -> None:
    pending = PendingCollective(Message("all_reduce", "0", 2), Place("forward"), 0, 7)
    work, now_ns = object(), 1
    for _ in range(CALLS):
        number = flight.issue(pending, now_ns)
        flight.returned(number, work)
        flight.waits(id(work), now_ns)
        flight.waited(now_ns)


def _written(file: int) -> None:
    for number in range(CALLS):
        os.pwrite(file, ENTRY.pack(number, 1, 0, 7, 3, 1, number), ENTRY.size * (number % 512))
