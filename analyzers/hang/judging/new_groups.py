"""Ranks that make a group: `new_group` returns once all ranks of the job have called it, members or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.analyzers.hang.standing.job import Job

_MAKES: Final = ("(new_group)", "(_new_group_with_tag)", "(_new_process_group_helper)", "(new_subgroups)")
"""Ends of frames of torch that stand in the call."""


def makes_group(job: Job, rank: int) -> bool:
    """Whether a rank stands in `new_group`."""
    return any(frame.endswith(_MAKES) for frame in job.ranks[rank].flight.frames)


def not_called(job: Job, late: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks that have not called `new_group`, if it is what ranks that are late stand in."""
    if not late or not all(rank in job.ranks and makes_group(job, rank) for rank in late):
        return ()
    return tuple(rank for rank in sorted(job.ranks) if not makes_group(job, rank))
