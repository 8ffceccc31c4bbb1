"""Sentences on jobs that do not hang, as far as collectives tell."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.hang.judging.diagnosis import Diagnosis
from shardtoll.analyzers.hang.standing.rank import Rank
from shardtoll.analyzers.hang.verdict.wording import (
    numbers,
    verb,
    waiters,
    where,
)
from shardtoll.ledger.words import human

_PLACES_MOST: Final = 4


def none(diagnosis: Diagnosis) -> str:
    """Say that no rank waits for another, and where all stand if that lasts."""
    ranks = tuple(diagnosis.job.ranks)
    if not ranks:
        return "No hang: no rank was read."
    closed = tuple(rank for rank in ranks if diagnosis.job.ranks[rank].standing == "closed")
    if closed == ranks:
        ended = verb(ranks, "has finished", "have finished")
        return f"No hang: {numbers(ranks)} {ended}."
    return _all_elsewhere(diagnosis) or (
        f"No hang: no rank waits for one that has not come ({numbers(ranks)} read)."
    )


def _all_elsewhere(diagnosis: Diagnosis) -> str | None:
    """Say where ranks stand that have issued no collective for as long as a hang takes; None if not so."""
    ranks = diagnosis.job.ranks
    times = [rank.for_ns or 0 for rank in ranks.values() if rank.standing in ("runs", "waits")]
    if len(times) < len(ranks) or min(times) < diagnosis.limit_ns or diagnosis.waits:
        return None
    if any(_has_unseen(rank) for rank in ranks.values()):
        return None
    time = human.duration(min(times))
    named = tuple(ranks)
    places: dict[str, list[int]] = {}
    for number, rank in ranks.items():
        places.setdefault(rank.flight.line or "an unknown line", []).append(number)
    where = [f"{numbers(group)} at {line}" for line, group in list(places.items())[:_PLACES_MOST]]
    more = ", ..." if len(places) > _PLACES_MOST else ""
    if not all(rank.flight.waits_block or not rank.flight.calls for rank in ranks.values()):
        return (
            f"No rank is behind another. None has issued a collective for {time} "
            f"({', '.join(where)}{more}). Work on the device is not done, or the ranks are elsewhere in "
            "their programs. NCCL's flight recorder knows which."
        )
    return (
        f"No hang in a collective: {verb(named, 'the rank is', 'all ranks are')} elsewhere in "
        f"{verb(named, 'its program', 'their programs')} and {verb(named, 'has', 'have')} issued none for "
        f"{time}; {', '.join(where)}{more}."
    )


def _has_unseen(rank: Rank) -> bool:
    """Whether a rank's groups have counted collectives that were not seen: C++ may issue more at any time."""
    last: dict[str, int] = {}
    for call in rank.flight.calls:
        last[call.group] = max(last.get(call.group, 0), call.place or 0)
    return rank.in_backward or any(
        (group.issued_place or 0) > last.get(group.name, 0) for group in rank.flight.groups
    )


def slow(diagnosis: Diagnosis) -> str:
    """Say that ranks wait, but not for long."""
    culprits = diagnosis.culprits
    place = where(diagnosis)
    if diagnosis.job.ended:
        return (
            f"No hang: when the job ended, {waiters(diagnosis, ended=True)} for {numbers(culprits)}, which "
            f"{verb(culprits, 'was', 'were')} {place}; "
            f"it counts as a hang after {human.duration(diagnosis.limit_ns)}."
        )
    return (
        f"No hang so far: {waiters(diagnosis)} for {numbers(culprits)}, which "
        f"{verb(culprits, 'is', 'are')} {place}; "
        f"it counts as a hang after {human.duration(diagnosis.limit_ns)}."
    )
