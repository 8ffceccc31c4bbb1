"""The verdict in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from shardtoll.analyzers.hang.judging.diagnosis import Diagnosis
from shardtoll.analyzers.hang.judging.later_steps import came_after, late_for, was_aborted
from shardtoll.analyzers.hang.judging.new_groups import may_not_have_called, outside
from shardtoll.analyzers.hang.standing.rank import Rank
from shardtoll.analyzers.hang.verdict import disagreeing, no_hang
from shardtoll.analyzers.hang.verdict.fewer import fewer_than_others
from shardtoll.analyzers.hang.verdict.unlisted import unknown
from shardtoll.analyzers.hang.verdict.wording import (
    capital,
    described,
    died_too,
    first_wait,
    in_same,
    lock_holders,
    numbers,
    stands_at,
    verb,
    waiters,
    where,
)
from shardtoll.ledger.words import human

_ERROR_MOST: Final = 140
_PLACES_MOST: Final = 3
"""Places of late ranks that a sentence names."""


def sentence(diagnosis: Diagnosis) -> str:
    """Return the verdict: who, where, and for whom the others wait."""
    return _SENTENCES.get(diagnosis.why, unknown)(diagnosis)


def _late(diagnosis: Diagnosis) -> str:
    culprits, ranks = diagnosis.culprits, diagnosis.job.ranks
    came = _came_late(diagnosis) or _makes_group(diagnosis)
    if came is not None:
        return came
    places: dict[str, list[int]] = {}
    for number in culprits:
        places.setdefault(_stood(ranks[number]), []).append(number)
    has = verb(culprits, "has", "have")
    if len(places) == 1:
        stood = f" and {has} {_stood(ranks[culprits[0]], for_ns=True)}"
    else:
        told = [
            f"{numbers(here)} {verb(tuple(here), 'has', 'have')} {_stood(ranks[here[0]], for_ns=True)}"
            for here in list(places.values())[:_PLACES_MOST]
        ]
        more = sum(map(len, list(places.values())[_PLACES_MOST:]))
        if more:
            told.append(f"{human.plural(more, 'more rank')} {'stands' if more == 1 else 'stand'} elsewhere")
        stood = f": {', '.join(told[:-1])} and {told[-1]}"
    who = f"{capital(numbers(culprits))} {has} not arrived"
    return f"{who}{stood}{_heartbeats(diagnosis)}; {waiters(diagnosis)}."


def _came_late(diagnosis: Diagnosis) -> str | None:
    """Say that the ranks at fault came only after the others had given up; None if they have not come."""
    first = first_wait(diagnosis)
    if first is None or first.place is None:
        return None
    culprits, job = diagnosis.culprits, diagnosis.job
    after = [came_after(job, first, rank) for rank in culprits]
    delays = [each for each in after if each is not None]
    if not delays or len(delays) < len(after):
        return None
    calls = job.ranks[culprits[0]].flight.calls
    before = next((each for each in reversed(calls[:-1]) if each.finished_ns is not None), None)
    since = "" if before is None else f"; its last collective before was {described(before)}"
    others = numbers(in_same(diagnosis, first))
    gone = all(was_aborted(job, rank) for rank in in_same(diagnosis, first))
    ended = "ended in that wait" if gone else "given up"
    when = f"{human.duration(max(delays))} after {others}, which had {ended}"
    return f"{capital(numbers(culprits))} came to {described(first.call)} {when}{since}."


def _makes_group(diagnosis: Diagnosis) -> str | None:
    """Say that ranks wait in `new_group`, and who is not in it; None if not so."""
    job, stuck, culprits = diagnosis.job, diagnosis.stuck, diagnosis.culprits
    if may_not_have_called(job, stuck) != culprits:
        return None
    if len(outside(job, stuck)) > 1 or job.absent():
        # Some of them may have returned from it: only one that has not called it is known to be there.
        none = f"none of {numbers(culprits)} is" if len(culprits) > 1 else f"{numbers(culprits)} is not"
        who = f"{capital(numbers(stuck))} {verb(stuck, 'waits', 'wait')} in new_group"
        place = _stood(job.ranks[stuck[0]], for_ns=True)
        missing = "a member that has not called it holds up all that have"
        return f"{who} ({verb(stuck, 'has', 'have')} {place}), and {none} in it: {missing}."
    made = f"{numbers(stuck)} {verb(stuck, 'has', 'have')} {_stood(job.ranks[stuck[0]], for_ns=True)}"
    have = verb(culprits, "has", "have")
    waits = diagnosis.waits.get(culprits[0])
    if waits is None:
        there = f"{have} {_stood(job.ranks[culprits[0]])}"
    else:
        there = f"{verb(culprits, 'waits', 'wait')} in {described(waits.call)}"
    who = f"{capital(numbers(culprits))} {have} not called new_group, in which {made}"
    return f"{who}; {verb(culprits, 'it', 'they')} {there}. All ranks have to call it, members or not."


def _stood(rank: Rank, *, for_ns: bool = False) -> str:
    """Return where a rank that is late has been, and for how long if asked."""
    did = f"been {stands_at(rank)}"
    if rank.flight.line is None and rank.blocked_call is None and rank.last_call is not None:
        did = f"issued nothing since {described(rank.last_call)}"
    return did if not for_ns or rank.for_ns is None else f"{did} for {human.duration(rank.for_ns)}"


def _heartbeats(diagnosis: Diagnosis) -> str:
    """Say which of the ranks at fault live without a heartbeat; empty if none does."""
    silent = lock_holders(diagnosis)
    if not silent:
        return ""
    longest = human.duration(max(diagnosis.job.ranks[rank].quiet_ns or 0 for rank in silent))
    whose = "its heartbeat has" if len(diagnosis.culprits) == 1 else f"the heartbeat of {numbers(silent)} has"
    since = f"for {longest}" if len(silent) == 1 else f"for up to {longest}"
    return f", and {whose} stopped {since}, as if code held Python's lock"


def _no_peer(diagnosis: Diagnosis) -> str:
    first = first_wait(diagnosis)
    call = None if first is None else first.call
    if call is None:
        return _late(diagnosis)
    both = both_sides(diagnosis)
    if both is not None:
        return f"{both}; {waiters(diagnosis)}."
    counterpart = "recv" if call.op == "send" else "send"
    culprits = diagnosis.culprits
    return (
        f"{capital(waiters(diagnosis))}, and {numbers(culprits)} {verb(culprits, 'has', 'have')} issued "
        f"no matching {counterpart}: {verb(culprits, 'it is', 'they are')} {where(diagnosis)}."
    )


def both_sides(diagnosis: Diagnosis) -> str | None:
    """Say that the ranks at fault wait in sends and receives whose other sides have come; None if not so."""
    waits = [wait for rank in diagnosis.culprits if (wait := diagnosis.waits.get(rank)) is not None]
    come = [wait for wait in waits if wait.is_point_to_point and not wait.missing]
    if not come or len(come) < len(diagnosis.culprits):
        return None
    waiting = [f"rank {wait.rank} waits in {described(wait.call)}" for wait in come]
    waiting = [*waiting[:_PLACES_MOST], *(["..."] if len(waiting) > _PLACES_MOST else [])]
    return f"{capital(', '.join(waiting))}: their other sides have come, and their tags may differ"


def _no_file(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    unopened = verb(culprits, "it has not opened its audit", "they have not opened their audits")
    return (
        f"{capital(waiters(diagnosis))} for {numbers(culprits)}, and no file of "
        f"{verb(culprits, 'it', 'them')} was given: {unopened}, or "
        f"{verb(culprits, 'its run folder is', 'their run folders are')} missing here."
    )


def _short(error: str) -> str:
    """Return an exception's text without the places in torch's sources that some begin with."""
    text = re.sub(r"\[[^\]]*\.(?:cc|cpp|h|hpp):\d+\] ?", "", error)
    return text if len(text) <= _ERROR_MOST else f"{text[:_ERROR_MOST]}..."


def _failed(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    rank = diagnosis.job.ranks[culprits[0]]
    why = f" with {_short(rank.flight.error)}" if rank.flight.error else ""
    return f"{capital(numbers(culprits))} failed{why} {stands_at(rank)}; {waiters(diagnosis)}."


def _dead(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    rank = diagnosis.job.ranks[culprits[0]]
    step = "" if rank.flight.step is None else f" in step {rank.flight.step}"
    last = rank.last_call
    seen = f"last seen at {rank.flight.line}" if rank.flight.line else (
        "before its first collective" if last is None else f"after {described(last)}"
    )  # fmt: skip
    others = died_too(diagnosis)
    too = f"; {numbers(others)} died too, and which died first is unknown" if others else ""
    too += "".join(f"; {each}" for each in _came_after_deaths(diagnosis))
    return f"{capital(numbers(culprits))} died{step}{_silence(diagnosis)}, {seen}; {waiters(diagnosis)}{too}."


def _came_after_deaths(diagnosis: Diagnosis) -> list[str]:
    """Say which ranks came only after which of those that died, and by how much."""
    same: dict[tuple[int, ...], dict[int, int]] = {}
    for rank in diagnosis.culprits:
        late = late_for(diagnosis.job, rank)
        if late is not None:
            same.setdefault(late[0], {})[rank] = late[1]
    clauses = []
    for came, after_ns in list(same.items())[:_PLACES_MOST]:
        up_to = "up to " if len(after_ns) > 1 else ""
        dead = numbers(tuple(after_ns))
        waited = human.duration(max(after_ns.values()))
        words = f"{numbers(came)} came there {up_to}{waited} after {dead}"
        clauses.append(f"{words}, and that wait may be why {dead} ended")
    return clauses


def _silence(diagnosis: Diagnosis) -> str:
    """Say that nothing tells a death from code that held Python's lock until the job was killed."""
    quiet_ns = diagnosis.job.ranks[diagnosis.culprits[0]].quiet_ns
    if not diagnosis.job.ended or quiet_ns is None or quiet_ns < diagnosis.limit_ns:
        return ""
    return f" or stood still (its heartbeat ended {human.duration(quiet_ns)} before any other)"


def _stopped(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    rank = diagnosis.job.ranks[culprits[0]]
    return (
        f"{capital(numbers(culprits))} {verb(culprits, 'is', 'are')} stopped by a signal "
        f"{stands_at(rank)}; {waiters(diagnosis)}."
    )


def _closed(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    rank = diagnosis.job.ranks[culprits[0]]
    last = rank.last_call
    after = "" if last is None else f", after {described(last)}"
    fewer = fewer_than_others(diagnosis)
    if fewer is not None:
        return f"{fewer}; {waiters(diagnosis)}."
    return f"{capital(numbers(culprits))} finished early{after}; {waiters(diagnosis)}."


_SENTENCES: Final[dict[str, Callable[[Diagnosis], str]]] = {
    "none": no_hang.none,
    "slow": no_hang.slow,
    "skipped": disagreeing.skipped,
    "extra": disagreeing.extra,
    "mismatch": disagreeing.mismatch,
    "order": disagreeing.order,
    "cycle": disagreeing.cycle,
    "failed": _failed,
    "dead": _dead,
    "closed": _closed,
    "stopped": _stopped,
    "late": _late,
    "no peer": _no_peer,
    "no file": _no_file,
    "unknown": unknown,
}
