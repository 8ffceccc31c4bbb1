"""Ranks that make a group: members may wait in `new_group` for each other, and others return at once."""

from __future__ import annotations

from collections.abc import Sequence

from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.unseen import makes_group


def outside(job: Job, late: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks that are not seen in `new_group`, if it is what ranks that are late stand in."""
    if not late or not all(rank in job.ranks and makes_group(job.ranks[rank].flight) for rank in late):
        return ()
    return tuple(rank for rank in sorted(job.ranks) if not makes_group(job.ranks[rank].flight))


def may_not_have_called(job: Job, late: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks that are known to stand elsewhere, if ranks that are late stand in `new_group`.

    Some of them may have returned from it, or be no members. Ranks without frames may be in it.
    """
    return tuple(
        rank
        for rank in outside(job, late)
        if job.ranks[rank].flight.frames or job.ranks[rank].blocked_call is not None
    )
