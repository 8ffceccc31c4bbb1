"""Flights of ranks for tests: as records, and as files written by the writer itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardtoll.ledger.records.flight import FlightCall, FlightGroup, RankFlight, State
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.pending import Message, PendingCollective, Place
from shardtoll.profiler.live.flight.flight import Flight

SECOND = 1_000_000_000
NOW = 1_000_000 * SECOND
"""When the files of made-up flights are read."""


def call(number: int, op: str = "all_reduce", place: int | None = None, **rest: Any) -> FlightCall:
    """Return a call of group `world`, 16 B of float32, finished unless `finished_ns` is None."""
    fields: dict[str, Any] = {
        "group": "world", "message_bytes": 16, "dtype": "float32", "source": "train.py:10 (step)",
        "issued_ns": NOW - 100 * SECOND + number, "finished_ns": NOW - 100 * SECOND + number,
    }  # fmt: skip
    fields |= rest
    return FlightCall(number, op, place=number if place is None else place, **fields)


def flight(
    rank: int,
    calls: Sequence[FlightCall],
    *,
    world: int = 2,
    blocked_s: float | None = None,
    groups: Sequence[FlightGroup] = (),
    **rest: Any,
) -> RankFlight:
    """Return a live rank of `world` ranks; `blocked_s`: how long it has been in its last call."""
    ranks = tuple(range(world))
    issued = max((each.place or 0 for each in calls if each.group == "world" and not each.is_point_to_point),
                 default=0)  # fmt: skip
    fields: dict[str, Any] = {
        "groups": (FlightGroup("world", ranks, issued_place=issued), *groups),
        "state": "open", "life": "alive", "moved_ns": NOW - 60 * SECOND, "heartbeat_ns": NOW,
        "beat_every_ns": SECOND, "hang_after_ns": 10 * SECOND,
    }  # fmt: skip
    if blocked_s is not None:
        since = NOW - int(blocked_s * SECOND)
        fields |= {"blocked": calls[-1].number, "blocked_since_ns": since, "moved_ns": since}
    return RankFlight(rank, world, "flight", f"flight.rank{rank:05d}.bin", tuple(calls), **(fields | rest))


class Issued:
    """What `Flight.returned` needs to know of a call."""

    def __init__(self, op: str, *, blocking: bool = False) -> None:
        self.call = self
        self.op, self.blocking, self.unnumbered = op, blocking, False

    def count(self) -> int | None:
        """Return no count: the group has none."""
        return None


def write_flight(
    folder: Path,
    rank: int,
    calls: int = 3,
    *,
    world: int = 2,
    state: State | None = "closed",
    hang_in: bool = False,
    hang_after_s: float | None = 120.0,
) -> Flight:
    """Write a rank's file with so many collectives, all finished but the last one if `hang_in`."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = Flight(Groups("cpu"), rank)
    writer.open(folder, world, "run", hang_after_s=hang_after_s, beat_s=None)
    message, place = (
        Message("all_reduce", "world", world, "float32", 16),
        Place("forward", source="a.py:1 (f)"),
    )
    for number in range(1, calls + 1):
        pending = PendingCollective(message, place, 0, None)
        issued = writer.issue(pending, 1_000 * number)
        if hang_in and number == calls:
            continue
        said: Any = Issued("all_reduce", blocking=True)
        writer.returned_calls(issued, None, [(pending, said)], 1_000 * number + 500)
    if state is not None:
        writer.end(state)
    writer.write()
    return writer
