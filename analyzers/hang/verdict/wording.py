"""How a verdict names ranks, collectives and places."""

from __future__ import annotations

from collections.abc import Sequence

from shardtoll.analyzers.hang.judging.diagnosis import Diagnosis
from shardtoll.analyzers.hang.standing.rank import Rank
from shardtoll.analyzers.hang.standing.waiting import Wait
from shardtoll.ledger.records.flight import FlightCall
from shardtoll.ledger.words import human


def numbers(ranks: Sequence[int], most: int = 8) -> str:
    """Return `rank 3`, `ranks 0, 2 and 5`, or `ranks 0-7` in words."""
    listed = sorted(set(ranks))
    if len(listed) == 1:
        return f"rank {listed[0]}"
    if len(listed) > 2 and listed[-1] - listed[0] == len(listed) - 1:
        return f"ranks {listed[0]}-{listed[-1]}"
    if len(listed) > most:
        return f"ranks {', '.join(map(str, listed[:most]))} and {len(listed) - most} more"
    return f"ranks {', '.join(map(str, listed[:-1]))} and {listed[-1]}"


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def verb(ranks: tuple[int, ...], one: str, many: str) -> str:
    """Return the form of a verb for so many ranks."""
    return one if len(ranks) == 1 else many


def described(call: FlightCall | None, place: int | None = None) -> str:
    """Return `all_reduce 12 of group dp (16 B float32) at train.py:40 (step)`."""
    if call is None:
        return "a collective that C++ issued" + ("" if place is None else f" (number {place} of its group)")
    if call.is_point_to_point:
        other = "any rank" if call.root is None else f"rank {call.root}"
        words = f"{call.op} {'to' if call.op == 'send' else 'from'} {other}"
    else:
        words = call.op + ("" if call.place is None else f" {call.place}")
        words += f" of group {call.group}"
    size = "" if not call.message_bytes else human.size(call.message_bytes)
    kind = " ".join(part for part in (size, call.dtype or "") if part)
    if call.root is not None and not call.is_point_to_point:
        kind += f"{', ' if kind else ''}root {call.root}"
    words += f" ({kind})" if kind else ""
    return words + ("" if call.source is None else f" at {call.source}")


def waiters(diagnosis: Diagnosis, *, ended: bool = False) -> str:
    """Return who waits, in what, and for how long."""
    first = first_wait(diagnosis)
    if first is None:
        others = diagnosis.stuck
        if not others:
            return "no other rank is known to wait"
        return f"{numbers(others)} failed then {stands_at(diagnosis.job.ranks[others[0]])}"
    same = in_same(diagnosis, first)
    same = tuple(rank for rank in same if rank not in diagnosis.culprits) or same
    for_ns = diagnosis.job.ranks[first.rank].for_ns
    since = f" for {human.duration(for_ns)}" if for_ns else ""
    failed = all(diagnosis.job.ranks[rank].ended_in_wait for rank in same)
    did = "failed" if failed else "had waited" if ended else verb(same, "waits", "wait")
    return f"{numbers(same)} {did}{since} in {described(first.call, first.place)}"


def died_too(diagnosis: Diagnosis) -> tuple[int, ...]:
    """Return ranks that died in a collective for which they say others died; one of them may have been first.

    A process may crash in its collective, and a launcher kills those that wait: both end in the same way.
    Empty if the rank at fault had fallen silent before.
    """
    ranks = diagnosis.job.ranks
    if diagnosis.why != "dead" or any(ranks[rank].quiet_ns is not None for rank in diagnosis.culprits):
        return ()
    return tuple(
        rank
        for rank in sorted(set(diagnosis.stuck) - set(diagnosis.culprits))
        if ranks[rank].standing == "dead"
    )


def lock_holders(diagnosis: Diagnosis) -> tuple[int, ...]:
    """Return the ranks at fault that live without a heartbeat, as if code held Python's lock.

    A process that is dead or stopped beats no more either, and no `py-spy` helps with it.
    """
    ranks = diagnosis.job.ranks
    return tuple(
        rank
        for rank in diagnosis.culprits
        if rank in ranks and ranks[rank].quiet_ns is not None and ranks[rank].standing == "runs"
    )


def in_same(diagnosis: Diagnosis, wait: Wait) -> tuple[int, ...]:
    """Return the stuck ranks that wait in the same collective, and for the same ranks."""
    return tuple(
        rank
        for rank in diagnosis.stuck
        if rank in diagnosis.waits and (diagnosis.waits[rank].key, diagnosis.waits[rank].place)
        == (wait.key, wait.place) and diagnosis.waits[rank].missing == wait.missing
    ) or (wait.rank,)  # fmt: skip


def first_wait(diagnosis: Diagnosis) -> Wait | None:
    """Return the wait to name: one for a culprit itself, the longest."""
    waits = [diagnosis.waits[rank] for rank in diagnosis.stuck if rank in diagnosis.waits]
    culprits = set(diagnosis.culprits)
    alike = {id(wait.missing): not culprits.isdisjoint(wait.missing) for wait in waits}
    direct = [wait for wait in waits if alike[id(wait.missing)]] or waits
    return max(direct, key=lambda wait: diagnosis.job.ranks[wait.rank].for_ns or 0, default=None)


def stands_at(rank: Rank) -> str:
    """Return where a rank is: its line, else its last call."""
    line = rank.flight.line
    if line is not None:
        return f"at {line}"
    last = rank.blocked_call or rank.last_call
    if rank.blocked_call is not None:
        return f"in {described(last)}"
    return "at an unknown line" if last is None else f"after {described(last)}"


def where(diagnosis: Diagnosis) -> str:
    """Return where the first rank at fault is."""
    rank = diagnosis.job.ranks.get(diagnosis.culprits[0]) if diagnosis.culprits else None
    return "in no file that was given" if rank is None else stands_at(rank)
