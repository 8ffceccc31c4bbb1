"""Facts that the files of a job that has ended prove: no rank goes on any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from shardtoll.analyzers.hang.judging.diagnosis import Diagnosis
from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.waiting import Wait
from shardtoll.ledger.answers.hang import Why

_GONE: Final[tuple[Why, ...]] = ("failed", "dead", "stopped", "closed")


def is_settled(job: Job, rank: int, wait: Wait, sure_ns: int) -> bool:
    """Whether the files of a job that has ended prove that a rank could not go on before those it waits for.

    A send may return before its receive is issued: only the time that the rank stood there decides.
    Collectives that C++ issues unseen are counted now and then, and prove nothing.
    """
    if not (job.ended and wait.missing and wait.call is not None and wait.place is not None):
        return False
    if job.ranks[rank].blocked_call is None:
        return False
    return not wait.call.is_point_to_point or _waited_before_end(job, rank, sure_ns)


def hung_before(job: Job, waiting: Iterable[int], limit_ns: int, dead: Sequence[int]) -> bool:
    """Whether a job hung already as its first rank ended.

    Who waited was killed too, or an exception ended its collective as the one it waited for was killed.
    `dead`: those it waited for. Who had given up as torch's limit was over had waited long enough for that.
    """
    waiting = [rank for rank in waiting if rank in job.ranks]
    if any(_outlived(job, rank, other) for rank in waiting if job.ranks[rank].timed_out for other in dead):
        return True
    return any(
        (job.ranks[rank].standing == "dead" or job.ranks[rank].ended_in_wait)
        and _waited_before_end(job, rank, limit_ns)
        for rank in waiting
    )


def _waited_before_end(job: Job, rank: int, limit_ns: int) -> bool:
    """Whether a rank had waited for so long before the first rank of a job ended."""
    since_ns = job.ranks[rank].waits_since_ns
    return since_ns is not None and job.first_end_ns is not None and job.first_end_ns - since_ns >= limit_ns


def _outlived(job: Job, rank: int, other: int) -> bool:
    """Whether another rank still lived as a rank gave up."""
    flights = job.ranks[rank].flight, job.ranks[other].flight
    if flights[0].heartbeat_ns is None or flights[1].heartbeat_ns is None:
        return False
    return flights[1].heartbeat_ns >= flights[0].heartbeat_ns - (flights[1].beat_every_ns or 0)


def first_gone(job: Job, reached: Sequence[int]) -> tuple[Why, tuple[int, ...]] | None:
    """Return how some of these ranks ended, those that failed first, and which; None if none has ended."""
    for why in _GONE:
        names = {"closed": ("closed", "left")}.get(why, (why,))
        ranks = tuple(rank for rank in reached if rank in job.ranks and job.ranks[rank].standing in names)
        if ranks:
            return why, ranks
    return None


def silent(job: Job, ranks: Sequence[int], limit_ns: int) -> list[int]:
    """Return those of some ranks that fell silent long before others, which may have ended because of it."""
    return [rank for rank in ranks if (job.ranks[rank].quiet_ns or 0) >= limit_ns]


def members(job: Job, waits: Mapping[int, Wait]) -> list[int]:
    """Return the ranks of the groups that some ranks wait in, ascending."""
    keys = {id(wait.key): wait.key for wait in waits.values()}
    return sorted({rank for key in keys.values() for rank in key[1] if rank in job.ranks})


def broken_down(job: Job, limit_ns: int, waits: Mapping[int, Wait]) -> Diagnosis | None:
    """Name the rank whose end ended the others in what C++ issues unseen; None if no rank was ended so."""
    victims = tuple(number for number, rank in job.ranks.items() if rank.is_victim)
    own = [number for number, rank in job.ranks.items() if not rank.is_victim]
    ended_in = {rank: waits[rank] for rank in victims if rank in waits}
    gone = None
    # A rank of the groups that the others were ended in comes before one that shares no group with them.
    for ranks in ([rank for rank in members(job, ended_in) if rank in own], own):
        quiet = silent(job, ranks, limit_ns) if victims else []
        failed = [rank for rank in ranks if job.ranks[rank].standing == "failed"]
        gone = gone or first_gone(job, quiet) or first_gone(job, failed)
    if gone is None and victims:
        gone = first_gone(job, own)
    if gone is None:
        return None
    return Diagnosis(job, gone[0], waits, limit_ns, gone[1], victims)
