"""Sentences on ranks that disagree: on a collective, on what comes next, or on who goes first."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.hang.judging.diagnosis import Diagnosis
from shardtoll.analyzers.hang.judging.pairs import other_side, unlike_pair
from shardtoll.analyzers.hang.verdict.unlisted import unknown
from shardtoll.analyzers.hang.verdict.wording import (
    described,
    numbers,
    verb,
)
from shardtoll.ledger.records.flight import FlightCall
from shardtoll.ledger.words import human


def _told(call: FlightCall, other: FlightCall) -> str:
    """Return what a call is, with its module if only that tells it from the other one."""
    alike = call.source == other.source and call.op == other.op and call.module != other.module
    return described(call) + (f", module {call.module}" if alike and call.module is not None else "")


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
    if call.group != theirs.group and call.step is not None and theirs.step is not None:
        went_on = f"went on with {described(call)}{later}"
        did = f"skipped {described(theirs)}{step} and {went_on}"
        return f"Rank {divergence.rank} {did}; {others} the skipped one."
    return (
        f"Rank {divergence.rank} skipped {_told(theirs, call)}{step} and issued {_told(call, theirs)}{later} "
        f"in its place; {others} the skipped one."
    )


def extra(diagnosis: Diagnosis) -> str:
    """Say that a rank issued one too many."""
    divergence = diagnosis.divergence
    if divergence is None:
        return unknown(diagnosis)
    call, theirs = divergence.call, divergence.others_call
    step = "" if call.step is None else f" in step {call.step}"
    who = numbers(divergence.others)
    later = "" if theirs.step in (None, call.step) else f" in step {theirs.step}"
    did = f"{verb(divergence.others, 'it', 'they')} issued {_told(theirs, call)}{later} there"
    return f"Rank {divergence.rank} issued {_told(call, theirs)}{step}, which {who} did not: {did}."


_NAMES: Final = {"message_bytes": "size", "reduce_op": "reduction", "op": "operation", "splits": "splits"}


def mismatch(diagnosis: Diagnosis) -> str:
    """Say in what the calls of one collective differ."""
    first = diagnosis.differing[0]
    for each in diagnosis.waits.values():
        if each.rank in diagnosis.stuck and unlike_pair(diagnosis.job, each) == diagnosis.differing:
            other = None if each.call is None else other_side(diagnosis.job, each.rank, each.call)
            here, there = described(each.call), described(other)
            return f"The size differs: rank {each.rank} is in {here}, and rank {first.rank} is in {there}."
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
    or_skipped = f", or {numbers(odd)} skipped that of {numbers(others)}" if divergence.certain else ""
    return (
        f"Deadlock by order: {numbers(odd)} issued {described(call)} first, and "
        f"{numbers(others)} issued {described(theirs)} first; each side waits for the other{or_skipped}."
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
