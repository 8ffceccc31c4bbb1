"""Who waits for whom: for each rank in a collective, the ranks that have not come to it."""

from __future__ import annotations

from msgspec import Struct

from shardtoll.analyzers.hang.standing.differing import differences_at, got_past
from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.rank import Key, Rank
from shardtoll.analyzers.hang.standing.sorts import OTHER_SIDE
from shardtoll.ledger.records.flight import FlightCall


class Wait(Struct, frozen=True):
    """The call that one rank waits in, and the ranks it waits for."""

    rank: int
    call: FlightCall | None
    """None if C++ issued it unseen."""
    key: Key
    place: int | None
    missing: tuple[int, ...]
    """Ranks that have not come; empty if all are there, or if nothing says who belongs to the group."""
    members_known: bool = True

    @property
    def is_point_to_point(self) -> bool:
        """Whether it waits in a send or a recv."""
        return self.call is not None and self.call.is_point_to_point


def waits_of(job: Job, limit_ns: int) -> dict[int, Wait]:
    """Return what each waiting rank waits in; ranks that wait in nothing known are left out.

    A rank that had waited for `limit_ns` as it ended still counts as one that waits. If a collective runs
    into its time-out, torch aborts the process, and that end is not a cause.
    """
    waits = {}
    known: dict[tuple[Key, int], bool] = {}
    absent: dict[tuple[Key, int | None], tuple[int, ...]] = {}
    for number, rank in job.ranks.items():
        seen = rank.blocked_call is not None
        ended = rank.standing == "dead" and (seen or rank.in_backward or not rank.flight.waits_block)
        if not (rank.waits or ended):
            continue
        wait = _wait(job, rank, absent) or _unlike(job, rank, limit_ns, known)
        if wait is None:
            continue
        long = (seen or wait.missing) and _had_waited(rank, limit_ns)
        if rank.waits or (seen and (job.over or job.ended)) or long:
            waits[number] = wait
    return waits


def _had_waited(rank: Rank, limit_ns: int) -> bool:
    """Whether a rank that ended had waited for so long by then."""
    return rank.for_ns is not None and rank.for_ns >= limit_ns


def _wait(job: Job, rank: Rank, absent: dict[tuple[Key, int | None], tuple[int, ...]]) -> Wait | None:
    """`absent`: who had not come to a collective, found out once for all that wait in it."""
    call = rank.blocked_call
    if call is None:
        return _unseen(job, rank)
    key = job.key(rank.rank, call.group)
    if call.is_point_to_point:
        return Wait(rank.rank, call, key, call.place, _side(job, rank, call, key))
    if rank.flight.not_arrived:
        return Wait(rank.rank, call, key, call.place, rank.flight.not_arrived)
    if (key, call.place) not in absent:
        absent[key, call.place] = _not_come(job, key, call.place)
    missing = absent[key, call.place]
    return Wait(rank.rank, call, key, call.place, missing, key not in job.unlisted)


def _not_come(job: Job, key: Key, place: int | None) -> tuple[int, ...]:
    """Return the ranks that have not come to a collective; if all have, those that nothing is known of."""
    issued = job.all_issued(key)
    behind = (rank for rank in key[1] if rank in job.ranks and issued.get(rank, 0) < (place or 0))
    return tuple(behind) or tuple(rank for rank in key[1] if rank not in job.ranks)


def _unlike(job: Job, rank: Rank, limit_ns: int, known: dict[tuple[Key, int], bool]) -> Wait | None:
    """Return the first collective of its last step that others say otherwise, if a rank stands still so long.

    On an accelerator only: there nothing tells which collective is not done. `known`: what was found out.
    """
    calls = rank.flight.calls
    if rank.flight.waits_block or not calls or not _had_waited(rank, limit_ns):
        return None
    for call in calls:
        key = job.key(rank.rank, call.group)
        if call.step != calls[-1].step or call.place is None or call.is_point_to_point:
            continue
        if (key, call.place) not in known:
            unlike = differences_at(job, key, call.place)
            known[key, call.place] = bool(unlike) and not got_past(job, key, call.place, unlike[0].what)
        if known[key, call.place]:
            return Wait(rank.rank, call, key, call.place, ())
    return None


def _side(job: Job, rank: Rank, call: FlightCall, key: Key) -> tuple[int, ...]:
    """Return the other side of a send or receive unless it has come."""
    if call.root is None:
        # A receive from anyone: all others may send.
        return tuple(other for other in key[1] if other != rank.rank and not _sends_to(job, other, rank.rank))
    other = job.ranks.get(call.root)
    if other is None or call.place is None:
        return (call.root,)
    come = max(
        (
            place
            for (of, op, root), place in other.channels.items()
            if of[0] == key[0] and op == OTHER_SIDE[call.op] and root in (rank.rank, None)
        ),
        default=0,
    )
    return () if come >= call.place else (call.root,)


def _sends_to(job: Job, sender: int, receiver: int) -> bool:
    other = job.ranks.get(sender)
    blocked = None if other is None else other.blocked_call
    return blocked is not None and blocked.op == "send" and blocked.root == receiver


def _unseen(job: Job, rank: Rank) -> Wait | None:
    """Return the group in which C++ has issued more than others have: what the rank waits in, unseen."""
    for group in rank.flight.groups:
        key = job.key(rank.rank, group.name)
        mine, issued = group.issued_place, job.all_issued(key)
        if mine is None or len(key[1]) < 2:
            continue
        behind = tuple(
            other
            for other in key[1]
            if other != rank.rank and other in job.ranks and issued.get(other, 0) < mine
        )
        if behind:
            call = rank.by_place.get((key, mine))
            return Wait(rank.rank, call, key, mine, behind)
    return None
