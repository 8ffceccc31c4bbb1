"""Steps and times of a rank that is waited for: it went on without, or it came too late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from shardtoll.analyzers.hang.judging.chains import in_collective
from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.rank import Key
from shardtoll.analyzers.hang.standing.waiting import Wait
from shardtoll.ledger.answers.hang import Divergence

_LEAST_NS: Final = 1_000_000_000
_SLACK_NS: Final = 2_000_000_000
_SLACK_SHARE: Final = 0.1
"""Who comes so much before others gave up may have come after: clocks differ. A short wait has less."""
_ABORTED_NS: Final = 5_000_000_000
_USUAL_TIMES: Final = 10
"""If a process ended in its longest wait, of that long and so many times a usual one, the wait may be why. A
watchdog of torch or a guard of the user's may have aborted it."""
_TOGETHER_NS: Final = 5_000_000_000
"""Processes that ended so within this were aborted by one cause: what kills one for itself spares others."""


def left_out(job: Job, waits: Mapping[int, Wait], ranks: Sequence[int]) -> Divergence | None:
    """Return which of some ranks is in a later step than one that waits for it; None if none is known to be.

    It has left out what the other waits in, and its own groups let it go on.
    """
    steps = {rank: _last_step(job, rank) for rank in ranks if rank in job.ranks}
    looked: set[tuple[tuple[int, ...], int]] = set()
    for rank, wait in sorted(waits.items()):
        call = wait.call
        if call is None or call.step is None or call.is_point_to_point:
            continue
        # Many ranks wait for the same ones, in the same step.
        if (wait.missing, call.step) in looked:
            continue
        looked.add((wait.missing, call.step))
        other = next((other for other in wait.missing if steps.get(other, 0) > call.step), None)
        if other is not None:
            later = next(each for each in job.ranks[other].flight.calls if (each.step or 0) > call.step)
            there = in_collective(waits, wait) or (rank,)
            return Divergence(other, later, there, call, "skipped", certain=True)
    return None


def _last_step(job: Job, rank: int) -> int:
    """Return the last step in which a rank is known to have issued a collective."""
    return max((call.step or 0 for call in job.ranks[rank].flight.calls), default=0)


def came_late(job: Job, waits: Mapping[int, Wait]) -> tuple[int, ...]:
    """Return the ranks that came to a collective only after others had given it up; empty if none did."""
    first: dict[tuple[Key, int], Wait] = {}
    for rank, wait in sorted(waits.items()):
        ended_in_it = job.ranks[rank].gave_up or was_aborted(job, rank)
        if ended_in_it and wait.place is not None and not wait.is_point_to_point:
            first.setdefault((wait.key, wait.place), wait)
    for (key, place), wait in first.items():
        others = sorted(job.at(key, place).keys() - {wait.rank})
        late = tuple(other for other in others if came_after(job, wait, other) is not None)
        if late:
            return late
    return ()


def was_aborted(job: Job, rank: int) -> bool:
    """Whether a process was aborted because of its wait: a long wait alone is no proof.

    Its wait had reached the time after which one counts as a hang, or others ended so at about that moment. A
    process that ran out of memory while another wrote a checkpoint ended in a long wait too.
    """
    waited_ns = _ended_after_ns(job, rank)
    if waited_ns is None:
        return False
    flight = job.ranks[rank].flight
    if flight.hang_after_ns is not None and waited_ns >= flight.hang_after_ns:
        return True
    end_ns = flight.heartbeat_ns or 0
    return any(
        abs((job.ranks[other].flight.heartbeat_ns or 0) - end_ns) <= _TOGETHER_NS
        for other in job.ranks
        if other != rank and _ended_after_ns(job, other) is not None
    )


def late_for(job: Job, rank: int) -> tuple[tuple[int, ...], int] | None:
    """Return the ranks that came to a collective only after a process had ended in a long wait there.

    With them, how many ns after it the last of them came. None if there are none: that process may have been
    ended because of them, or for itself.
    """
    call = job.ranks[rank].blocked_call if rank in job.ranks else None
    if call is None or call.place is None or call.is_point_to_point or _ended_after_ns(job, rank) is None:
        return None
    key = job.key(rank, call.group)
    wait = Wait(rank, call, key, call.place, ())
    after = {other: came_after(job, wait, other) for other in sorted(job.at(key, call.place).keys() - {rank})}
    known = {other: after_ns for other, after_ns in after.items() if after_ns is not None}
    return (tuple(known), max(known.values())) if known else None


def _ended_after_ns(job: Job, rank: int) -> int | None:
    """Return how long a process had waited as it ended without an exception; None if no longer than usual."""
    flight, call = job.ranks[rank].flight, job.ranks[rank].blocked_call
    if job.ranks[rank].standing != "dead" or flight.error or call is None or not flight.waits_block:
        return None
    if call.issued_ns is None or flight.heartbeat_ns is None:
        return None
    before = [
        each.finished_ns - each.issued_ns
        for each in flight.calls
        if each.finished_ns is not None and each.issued_ns is not None
    ]
    waited_ns = flight.heartbeat_ns - call.issued_ns
    least_ns = max(_ABORTED_NS, _USUAL_TIMES * median(before), *before) if before else None
    return waited_ns if least_ns is not None and waited_ns >= least_ns else None


def came_after(job: Job, wait: Wait, other: int) -> int | None:
    """Return how many ns after a rank that gave up another one came; None if it did not, or is unknown."""
    calls = job.at(wait.key, wait.place or 0)
    mine, theirs = calls.get(wait.rank), calls.get(other)
    end_ns = job.ranks[wait.rank].flight.heartbeat_ns
    if mine is None or theirs is None or end_ns is None:
        return None
    if mine.issued_ns is None or theirs.issued_ns is None:
        return None
    after_ns, waited_ns = theirs.issued_ns - mine.issued_ns, end_ns - mine.issued_ns
    slack_ns = min(_SLACK_NS, _SLACK_SHARE * waited_ns)
    return after_ns if after_ns >= max(waited_ns - slack_ns, _LEAST_NS) else None
