"""Text about a group whose ranks nothing lists, as in a log."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.hang.judging.diagnosis import Diagnosis
from shardtoll.analyzers.hang.standing.waiting import Wait
from shardtoll.analyzers.hang.verdict.wording import (
    capital,
    first_wait,
    in_same,
    numbers,
    verb,
    waiters,
)

_ALL: Final = ("0", "default", "default_pg")
"""Names of the group of all ranks in torch's logs and dumps."""
_SUSPECTS_MOST: Final = 1 << 16


def unlisted(diagnosis: Diagnosis) -> Wait | None:
    """Return the wait of a job in whose group more ranks may be than were read; None if all are known."""
    first = first_wait(diagnosis)
    if diagnosis.why != "unknown" or first is None or first.call is None:
        return None
    return first if first.place is None or not first.members_known else None


def source_of(diagnosis: Diagnosis, wait: Wait) -> str:
    """Return what kind of file a wait was read from."""
    return "dump" if diagnosis.job.ranks[wait.rank].flight.source == "recorder" else "log"


def suspects(diagnosis: Diagnosis) -> tuple[int, ...]:
    """Return ranks between those that speak of the group of all ranks, which say nothing themselves."""
    wait = unlisted(diagnosis)
    if wait is None or wait.place is None or wait.key[0] not in _ALL:
        return ()
    job = diagnosis.job
    return tuple(rank for rank in range(min(max(job.ranks), _SUSPECTS_MOST)) if rank not in job.ranks)


def unknown(diagnosis: Diagnosis) -> str:
    """Say that nothing tells who is at fault."""
    wait = unlisted(diagnosis)
    if wait is not None:
        here = in_same(diagnosis, wait)
        come = f", and {verb(here, 'it has', 'they have')} arrived" if wait.place is not None else ""
        said = (
            f"{capital(waiters(diagnosis))}{come}; the {source_of(diagnosis, wait)} does not say which ranks "
            "did not"
        )
        named = suspects(diagnosis)
        if not named:
            return f"{said}{'' if come else ' arrive'}."
        return f"{said}, and has nothing of {numbers(named)}."
    return (
        f"{capital(waiters(diagnosis))}, and all its ranks have arrived: "
        "the network, the tags of sends and receives, or what C++ issues unseen."
    )
