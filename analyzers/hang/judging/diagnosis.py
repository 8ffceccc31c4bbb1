"""Facts found about a job that may hang, before they are put into words."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.waiting import Wait
from shardtoll.ledger.answers.hang import Difference, Divergence, Why


class Diagnosis(Struct, frozen=True):
    """Facts that the sentence is made of."""

    job: Job
    why: Why
    waits: Mapping[int, Wait]
    limit_ns: int
    culprits: tuple[int, ...] = ()
    """Ranks that the others wait for in the end; of a circle those that broke an order, else all in it."""
    stuck: tuple[int, ...] = ()
    """Ranks that wait."""
    cycle: tuple[int, ...] = ()
    differing: tuple[Difference, ...] = ()
    divergence: Divergence | None = None
    """Point where programs first differ, if that is why; None if something else is to blame."""
    parted: Divergence | None = None
    """Point where programs first differ, whatever is to blame; None if nothing on record does."""

    @property
    def hang(self) -> bool:
        """Whether the job hangs."""
        return self.why not in ("none", "slow")
