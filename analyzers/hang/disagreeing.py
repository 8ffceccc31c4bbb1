"""Sentences on ranks that disagree: on a collective, on what comes next, or on who goes first."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.hang.diagnosis import Diagnosis
from shardtoll.analyzers.hang.unlisted import unknown
from shardtoll.analyzers.hang.wording import (
    described,
    numbers,
    verb,
)
from shardtoll.ledger.words import human


def skipped(diagnosis: Diagnosis) -> str:
    """Say that a rank left out what the others are in."""
    divergence = diagnosis.divergence
    if divergence is None:
        return unknown(diagnosis)
    call, theirs = divergence.call, divergence.others_call
    step = "" if theirs.step is None else f" in step {theirs.step}"
    others = f"{numbers(divergence.others)} {verb(divergence.others, 'is', 'are')} in"
    if theirs.finished_ns is not None:
        others = f"{numbers(divergence.others)} issued"
    later = "" if call.step is None or call.step == theirs.step else f" in step {call.step}"
    return (
        f"Rank {divergence.rank} skipped {described(theirs)}{step} and issued {described(call)}{later} "
        f"in its place; {others} the skipped one."
    )


def extra(diagnosis: Diagnosis) -> str:
    """Say that a rank issued one too many."""
    divergence = diagnosis.divergence
    if divergence is None:
        return unknown(diagnosis)
    call, theirs = divergence.call, divergence.others_call
    step = "" if call.step is None else f" in step {call.step}"
    return (
        f"Rank {divergence.rank} issued {described(call)}{step}, which {numbers(divergence.others)} did not: "
        f"{verb(divergence.others, 'it', 'they')} issued {described(theirs)} there."
    )


_NAMES: Final = {"message_bytes": "size", "reduce_op": "reduction", "op": "operation", "splits": "splits"}


def mismatch(diagnosis: Diagnosis) -> str:
    """Say in what the calls of one collective differ."""
    first = diagnosis.differing[0]
    wait = next(
        each
        for each in diagnosis.waits.values()
        if each.rank in diagnosis.stuck and first.rank in diagnosis.job.at(each.key, each.place or 0)
    )
    calls = diagnosis.job.at(wait.key, wait.place or 0)
    odd = diagnosis.culprits
    mine = calls[first.rank]
    others = tuple(rank for rank in calls if rank not in odd) or tuple(r for r in calls if r != first.rank)
    theirs = calls[others[0]] if others else mine
    what = _NAMES.get(first.what, first.what)
    if first.what == "splits":
        pairs = "; ".join(
            f"rank {each.rank} sends {human.size(int(each.here or 0))} and expects "
            f"{human.size(int(each.others or 0))} at {calls[each.rank].source}"
            for each in diagnosis.differing[:4]
        )
        return f"The splits of all_to_all {wait.place} of group {wait.key[0]} differ: {pairs}."
    return (
        f"The {what} differs: {numbers(odd)} {verb(odd, 'is', 'are')} in {described(mine)}, "
        f"and {numbers(others)} {verb(others, 'is', 'are')} in {described(theirs)}."
    )


def order(diagnosis: Diagnosis) -> str:
    """Say that ranks issue the collectives of two groups in different order."""
    divergence = diagnosis.divergence
    if divergence is None:
        return cycle(diagnosis)
    call, theirs, others = divergence.call, divergence.others_call, divergence.others
    odd = diagnosis.culprits if divergence.certain else (divergence.rank,)
    return (
        f"Deadlock by order: {numbers(odd)} issued {described(call)} first, and "
        f"{numbers(others)} issued {described(theirs)} first; each side waits for the other."
    )


def cycle(diagnosis: Diagnosis) -> str:
    """Say who waits for whom in a circle."""
    parts = []
    cycle = diagnosis.cycle
    for index, rank in enumerate(cycle):
        following = cycle[(index + 1) % len(cycle)]
        wait = diagnosis.waits[rank]
        parts.append(f"rank {rank} waits for rank {following} in {described(wait.call, wait.place)}")
    shown = parts if len(parts) <= 4 else [*parts[:3], f"{len(parts) - 4} more ranks in between", parts[-1]]
    return f"Deadlock: {', '.join(shown[:-1])} and {shown[-1]}."
