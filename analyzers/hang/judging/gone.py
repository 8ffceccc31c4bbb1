"""Ranks that are gone, and jobs that broke down with one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardtoll.analyzers.hang.judging.diagnosis import Diagnosis
from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.waiting import Wait
from shardtoll.ledger.answers.hang import Why

_GONE: Final[tuple[Why, ...]] = ("failed", "dead", "stopped", "closed")


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
