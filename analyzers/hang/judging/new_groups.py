"""Ranks that make a group: `new_group` returns once all ranks of the job have called it, members or not."""

from __future__ import annotations

from collections.abc import Sequence

from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.unseen import makes_group


def not_called(job: Job, late: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks that have not called `new_group`, if it is what ranks that are late stand in."""
    if not late or not all(rank in job.ranks and makes_group(job.ranks[rank].flight) for rank in late):
        return ()
    return tuple(rank for rank in sorted(job.ranks) if not makes_group(job.ranks[rank].flight))
