"""What steps and times say of a rank that is waited for: it went on without, or it came too late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardtoll.analyzers.hang.chains import in_collective
from shardtoll.analyzers.hang.job import Job
from shardtoll.analyzers.hang.rank import Key
from shardtoll.analyzers.hang.waiting import Wait
from shardtoll.ledger.answers.hang import Divergence

_LEAST_NS: Final = 1_000_000_000
_SHARE: Final = 0.9
"""Who comes after this share of the time that others waited came as they gave up: clocks differ a little."""


def left_out(job: Job, waits: Mapping[int, Wait], ranks: Sequence[int]) -> Divergence | None:
    """Return which of some ranks is in a later step than one that waits for it; None if none is known to be.

    It has left out what the other waits in, and its own groups let it go on.
    """
    for rank, wait in sorted(waits.items()):
        call = wait.call
        if call is None or call.step is None or call.is_point_to_point:
            continue
        for other in wait.missing:
            if other not in ranks or other not in job.ranks:
                continue
            last = job.ranks[other].last_step
            later = [each for each in job.ranks[other].flight.calls if (each.step or 0) > call.step]
            if last is not None and last > call.step and later:
                there = in_collective(waits, wait) or (rank,)
                return Divergence(other, later[0], there, call, "skipped", certain=True)
    return None


def came_late(job: Job, waits: Mapping[int, Wait]) -> tuple[int, ...]:
    """Return the ranks that came to a collective only after others had given it up; empty if none did."""
    first: dict[tuple[Key, int], Wait] = {}
    for rank, wait in sorted(waits.items()):
        if job.ranks[rank].timed_out and wait.place is not None and not wait.is_point_to_point:
            first.setdefault((wait.key, wait.place), wait)
    for (key, place), wait in first.items():
        others = sorted(job.at(key, place).keys() - {wait.rank})
        late = tuple(other for other in others if came_after(job, wait, other) is not None)
        if late:
            return late
    return ()


def came_after(job: Job, wait: Wait, other: int) -> int | None:
    """Return how many ns after a rank that gave up another one came; None if it did not, or is unknown."""
    calls = job.at(wait.key, wait.place or 0)
    mine, theirs = calls.get(wait.rank), calls.get(other)
    end_ns = job.ranks[wait.rank].flight.heartbeat_ns
    if mine is None or theirs is None or end_ns is None:
        return None
    if mine.issued_ns is None or theirs.issued_ns is None:
        return None
    after_ns = theirs.issued_ns - mine.issued_ns
    return after_ns if after_ns >= max(_SHARE * (end_ns - mine.issued_ns), _LEAST_NS) else None
