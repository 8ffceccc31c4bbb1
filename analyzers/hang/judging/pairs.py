"""The two sides of a send: whether they agree on its size."""

from __future__ import annotations

from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.sorts import OTHER_SIDE
from shardtoll.analyzers.hang.standing.waiting import Wait
from shardtoll.ledger.answers.hang import Difference
from shardtoll.ledger.records.flight import FlightCall


def other_side(job: Job, rank: int, call: FlightCall) -> FlightCall | None:
    """Return the call on the other rank that belongs to a send or receive; None if it has not come."""
    other = None if call.root is None else job.ranks.get(call.root)
    if other is None or call.place is None:
        return None
    return other.sides.get((job.key(rank, call.group), OTHER_SIDE[call.op], rank, call.place))


def other_side_ended(job: Job, wait: Wait) -> bool:
    """Whether the other rank of a send or receive ended in its side of it: nothing changes there any more."""
    call = wait.call
    if call is None or not call.is_point_to_point or call.root not in job.ranks:
        return False
    other = other_side(job, wait.rank, call)
    return other is not None and other.finished_ns is None and job.ranks[call.root].is_gone


def unlike_pair(job: Job, wait: Wait) -> tuple[Difference, ...]:
    """Return how the other side of the send or receive that a rank waits in differs from it.

    Not if they differed before and both went on: a receive may have more room than it needs.
    """
    call = wait.call
    if call is None or not call.is_point_to_point or not _differ(job, wait.rank, call):
        return ()
    other = other_side(job, wait.rank, call)
    got_past = any(
        each.op == call.op and each.finished_ns is not None and _differ(job, wait.rank, each)
        for each in job.ranks[wait.rank].flight.calls
    )
    if other is None or call.root is None or got_past:
        return ()
    return (Difference(call.root, "message_bytes", other.message_bytes, call.message_bytes),)


def _differ(job: Job, rank: int, call: FlightCall) -> bool:
    other = other_side(job, rank, call)
    if other is None or None in (other.message_bytes, call.message_bytes):
        return False
    return other.message_bytes != call.message_bytes
