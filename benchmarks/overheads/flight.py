"""What a rank's flight file costs a collective, next to writing the same entry with one system call.

Three loops: calls of one kind, calls of more kinds in turn than the file has texts for, and calls of which
none was seen before. Each collective is issued, returned, waited for and done. What the watchdog's thread
does in one beat is timed by itself.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from harness import Spread

from shardtoll.ledger.disk.flight_layout import ENTRY, TEXTS
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.pending import Message, PendingCollective, Place
from shardtoll.profiler.live.flight.flight import Flight

CALLS: Final = 2_000
KINDS: Final = 4_000
BEATS: Final = 20
AIM_US: Final = 1.0


def figures(repeats: int) -> dict[str, float | None]:
    """Return microseconds of CPU time per collective, each the median, and the least of all repeats.

    The machine may be shared: the least is what the code costs, the quartiles are what else ran.
    """
    alike = [PendingCollective(Message("all_reduce", "0", 2), Place("forward"), 0, 7)]
    unlike = [
        PendingCollective(Message("all_to_all", "0", 2, message_bytes=size), Place("forward"), 0, 7)
        for size in range(KINDS)
    ]
    seen = unlike[: 2 * TEXTS]
    noted, again, many, written, nothing, beats = [], [], [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        flight = Flight(Groups("cpu"), 0)
        flight.open(Path(folder), 2, "run", hang_after_s=None, beat_s=None)
        file = os.open(Path(folder, "peer"), os.O_RDWR | os.O_CREAT)
        for _ in range(repeats):
            nothing.append(_timed(_nothing))
            noted.append(_timed(lambda: _noted(flight, alike)))
            again.append(_timed(lambda: _noted(flight, seen, forget=False), len(seen)))
            many.append(_timed(lambda: _noted(flight, unlike[len(seen) :]), KINDS - len(seen)))
            written.append(_timed(lambda: _written(file)))
            beats.append(_timed(lambda: _beat(flight), BEATS))
        os.close(file)
        flight.end("closed")
    loop = Spread.of(nothing).median
    ours = Spread.of([value - loop for value in noted])
    peer = Spread.of([value - loop for value in written])
    return {
        "flight.collective_us": ours.median,
        "flight.collective_us_q1": ours.low,
        "flight.collective_us_q3": ours.high,
        "flight.collective_us_least": min(noted) - min(nothing),
        "flight.many_kinds_us": Spread.of(again).median - loop,
        "flight.many_kinds_us_least": min(again) - min(nothing),
        "flight.new_kind_us": Spread.of(many).median - loop,
        "flight.new_kind_us_least": min(many) - min(nothing),
        "flight.pwrite_us": peer.median,
        "flight.pwrite_us_least": min(written) - min(nothing),
        "flight.over_pwrite": ours.median / peer.median,
        "flight.beat_us": Spread.of(beats).median,
    }


def _timed(work: Callable[[], None], times: int = CALLS) -> float:
    begun_ns = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - begun_ns) / times / 1e3


def _nothing() -> None:
    for _ in range(CALLS):
        pass


def _noted(flight: Flight, kinds: Sequence[PendingCollective], *, forget: bool = True) -> None:
    work, now_ns, count = object(), 1, len(kinds)
    if count == 1:
        (pending,) = kinds
        for _ in range(CALLS):
            note = flight.issue(pending, now_ns)
            flight.returned(note, work)
            flight.waits(id(work), now_ns)
            flight.waited(now_ns)
        return
    for pending in kinds:
        if forget:
            pending.place.kind = None
        note = flight.issue(pending, now_ns)
        flight.returned(note, work)
        flight.waits(id(work), now_ns)
        flight.waited(now_ns)


def _beat(flight: Flight) -> None:
    for _ in range(BEATS):
        flight.write(repair=True)


def _written(file: int) -> None:
    for number in range(CALLS):
        os.pwrite(file, ENTRY.pack(number, 1, 0, 7, 3, 1, 1, 1, number), ENTRY.size * (number % 512))
