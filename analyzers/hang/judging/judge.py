"""Whether a job hangs, and who is at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from shardtoll.analyzers.hang.judging.chains import all_ends, all_missing, cycle_of, in_collective
from shardtoll.analyzers.hang.judging.diagnosis import Diagnosis
from shardtoll.analyzers.hang.judging.ended import (
    broken_down,
    first_gone,
    hung_before,
    is_settled,
    members,
    silent,
)
from shardtoll.analyzers.hang.judging.later_steps import came_late, left_out, was_aborted
from shardtoll.analyzers.hang.judging.new_groups import may_not_have_called, outside
from shardtoll.analyzers.hang.judging.pairs import other_side_ended, unlike_pair
from shardtoll.analyzers.hang.order.divergence import first_divergence, parted
from shardtoll.analyzers.hang.order.program_order import odd_ones
from shardtoll.analyzers.hang.standing.differing import differences_at, got_past
from shardtoll.analyzers.hang.standing.job import SURE_AFTER_NS, Job
from shardtoll.analyzers.hang.standing.rank import Key
from shardtoll.analyzers.hang.standing.waiting import Wait, waits_of
from shardtoll.ledger.answers.hang import Difference, Divergence, Why
from shardtoll.ledger.records.flight import FlightCall


def _long_enough(job: Job, rank: int, limit_ns: int) -> bool:
    """Whether a rank has stood still for so long; a rank without times was dumped as it hung."""
    for_ns = job.ranks[rank].for_ns
    return for_ns is None or for_ns >= limit_ns


def judge(job: Job, limit_ns: int) -> Diagnosis:
    """Return what is known of the job: `limit_ns` is how long a rank that may still come is waited for."""
    diagnosis = _judge(job, limit_ns)
    differs = diagnosis.divergence or (parted(job) if diagnosis.hang else None)
    return replace(diagnosis, parted=differs)


def _judge(job: Job, limit_ns: int) -> Diagnosis:
    waits = waits_of(job, limit_ns)
    sure_ns = min(limit_ns, SURE_AFTER_NS)
    # If the job is over, no call that ranks were in went on.
    stuck = {rank: wait for rank, wait in waits.items() if job.over or _long_enough(job, rank, sure_ns)}
    # No file of a rank that has ended changes any more: what disagrees there needs no second.
    pairs = {rank: wait for rank, wait in waits.items() if other_side_ended(job, wait)}
    final = waits if job.ended else {**stuck, **pairs}
    for differing, wait in _disagreements(job, final):
        divergence = first_divergence(job)
        why: Why = "mismatch"
        if divergence is not None and divergence.what in ("skipped", "extra"):
            why = "skipped" if divergence.what == "skipped" else "extra"
        ranks = tuple(sorted({each.rank for each in differing}))
        return Diagnosis(
            job, why, waits, limit_ns, ranks, in_collective(final, wait), (), differing, divergence
        )
    crossed = cycle_of({rank: wait for rank, wait in waits.items() if is_settled(job, rank, wait, sure_ns)})
    if crossed:
        # It was there before any rank ended: no end of a rank brings it about.
        return _circle(job, limit_ns, waits, crossed, tuple(rank for rank in final if final[rank].missing))
    waiting = {rank: wait for rank, wait in stuck.items() if wait.missing}
    if not waiting:
        after = came_late(job, waits)
        if after and all(was_aborted(job, rank) for rank in waits if rank not in after):
            # Their end is no cause: it came of the wait.
            return Diagnosis(job, "late", waits, limit_ns, after, tuple(sorted(waits.keys() - set(after))))
        return broken_down(job, limit_ns, waits) or _none_missing(job, stuck, limit_ns, waits)
    ends = all_ends(stuck, waiting)
    reached = sorted({end for each in {id(each): each for each in ends.values()}.values() for end in each})
    gone = first_gone(job, [rank for rank in reached if rank in job.ranks and not job.ranks[rank].is_victim])
    broken = broken_down(job, limit_ns, waits) if gone is None else None
    if broken is not None:
        blamed = broken.culprits
        # One that waits for victims since long before is no cause of their ends.
        if not waiting.keys() >= set(blamed) or not hung_before(job, {*waiting, *reached}, limit_ns, blamed):
            return broken
        return _late(job, limit_ns, waits, waiting, reached)
    if gone is not None:
        why, culprits = gone
        if why == "dead" and hung_before(job, waiting, limit_ns, culprits):
            late = _late(job, limit_ns, waits, waiting, reached)
            if late.hang:
                return late
        return _with_divergence(job, why, waits, limit_ns, culprits, tuple(waiting))
    if not all(ends.values()):
        cycle = cycle_of({rank: wait for rank, wait in waiting.items() if not ends[rank]})
        if cycle:
            return _circle(job, limit_ns, waits, cycle, tuple(waiting))
    return _late(job, limit_ns, waits, waiting, reached)


def _circle(
    job: Job, limit_ns: int, waits: Mapping[int, Wait], cycle: tuple[int, ...], stuck: tuple[int, ...]
) -> Diagnosis:
    """Say why ranks wait for each other in a circle."""
    divergence = first_divergence(job)
    why: Why = "order" if divergence is not None and divergence.what == "order" else "cycle"
    sends = [rank for rank in cycle if _is_one_sided(waits, rank, cycle)]
    if sends:
        culprits = tuple(other for rank in sends for other in waits[rank].missing)
        return Diagnosis(job, "no peer", waits, limit_ns, culprits[:1], tuple(sends), cycle)
    if divergence is not None and divergence.what in ("skipped", "extra"):
        why = "skipped" if divergence.what == "skipped" else "extra"
    odd = odd_ones(job, divergence) if divergence is not None and why == "order" else ()
    return Diagnosis(job, why, waits, limit_ns, odd or cycle, stuck, cycle, (), divergence)


def _is_one_sided(waits: Mapping[int, Wait], rank: int, cycle: Sequence[int]) -> bool:
    """Whether a rank of a cycle is in a send or receive whose other side is in a collective, or a step on."""
    call = waits[rank].call
    if call is None or not call.is_point_to_point:
        return False
    others = [waits[other].call for other in waits[rank].missing if other in cycle]
    return any(
        other is not None and (not other.is_point_to_point or _is_later(other, call)) for other in others
    )


def _is_later(call: FlightCall, than: FlightCall) -> bool:
    return call.step is not None and than.step is not None and call.step > than.step


def _disagreements(job: Job, stuck: Mapping[int, Wait]) -> list[tuple[tuple[Difference, ...], Wait]]:
    """Return what ranks disagree on where some rank waits, the earliest first."""
    unlike = []
    seen: set[tuple[Key, int, int | None]] = set()
    for rank, wait in stuck.items():
        if wait.call is None or wait.place is None:
            continue
        # One rank stands for all that wait in a collective.
        which = wait.key, wait.place, rank if wait.is_point_to_point else None
        if which in seen:
            continue
        seen.add(which)
        pair = unlike_pair(job, wait)
        differing = pair or (() if wait.is_point_to_point else differences_at(job, wait.key, wait.place))
        if pair or (differing and not got_past(job, wait.key, wait.place, differing[0].what)):
            unlike.append((job.ranks[rank].flight.blocked_since_ns or 0, rank, differing, wait))
    return [(differing, wait) for _, _, differing, wait in sorted(unlike, key=lambda each: each[:2])]


def _with_divergence(
    job: Job,
    why: Why,
    waits: Mapping[int, Wait],
    limit_ns: int,
    culprits: tuple[int, ...],
    stuck: tuple[int, ...],
) -> Diagnosis:
    """Say that ranks wait for one that is gone; if it ended well, a collective it left out before is why."""
    divergence = first_divergence(job) if why == "closed" else None
    if why == "closed" and not _blames(divergence, culprits):
        divergence = left_out(job, waits, culprits)
    if divergence is not None and divergence.what in ("skipped", "extra") and divergence.rank in culprits:
        why = "skipped" if divergence.what == "skipped" else "extra"
    return Diagnosis(job, why, waits, limit_ns, culprits, stuck, (), (), divergence)


def _none_missing(job: Job, stuck: Mapping[int, Wait], limit_ns: int, waits: Mapping[int, Wait]) -> Diagnosis:
    """All ranks are where one waits: a transfer, or what only the network or the backend knows."""
    here = members(job, stuck)
    gone = first_gone(job, silent(job, here, limit_ns)) or first_gone(
        job, [rank for rank in here if rank not in stuck]
    )
    come = () if gone is not None else came_late(job, waits)
    if come:
        given_up = tuple(rank for rank in sorted(waits) if rank not in come)
        return Diagnosis(job, "late", waits, limit_ns, come, given_up)
    gone = gone or first_gone(job, sorted(stuck))
    if gone is not None:
        return Diagnosis(job, gone[0], waits, limit_ns, gone[1], tuple(sorted(stuck)))
    long = tuple(rank for rank in stuck if _long_enough(job, rank, limit_ns))
    crossed = None if long else _crossed(job, limit_ns, waits)
    if crossed is not None:
        return crossed
    if not long:
        return _all_victims(job, limit_ns, waits) or _short(job, limit_ns, waits)
    return Diagnosis(job, "unknown", waits, limit_ns, (), long)


def _all_victims(job: Job, limit_ns: int, waits: Mapping[int, Wait]) -> Diagnosis | None:
    """Say that ranks of a job that is over failed in waits, and nothing says for whom; None if none did."""
    victims = [number for number, rank in job.ranks.items() if job.over and rank.is_victim]
    first = [number for number in victims if job.ranks[number].timed_out] or victims
    others = tuple(number for number in victims if number not in first)
    return Diagnosis(job, "failed", waits, limit_ns, tuple(first), others) if first else None


def _crossed(job: Job, limit_ns: int, waits: Mapping[int, Wait]) -> Diagnosis | None:
    """Say that ranks which stand still on an accelerator issued the last step's collectives in another order.

    There every rank has issued all of them, and none is known to wait.
    """
    still = tuple(
        number
        for number, rank in job.ranks.items()
        if not rank.flight.waits_block and rank.flight.calls and _long_enough(job, number, limit_ns)
    )
    divergence = first_divergence(job) if len(still) > 1 and len(still) == len(job.ranks) else None
    if divergence is None or divergence.what != "order":
        return None
    last = job.ranks[divergence.rank].last_call
    if last is None or last.step != divergence.call.step:
        return None
    odd = odd_ones(job, divergence) or (divergence.rank, *divergence.others)
    return Diagnosis(job, "order", waits, limit_ns, odd, still, (), (), divergence)


def _short(job: Job, limit_ns: int, waits: Mapping[int, Wait]) -> Diagnosis:
    """Name ranks that others wait for, though not for long; `none` if all have come."""
    waiting = {rank: wait for rank, wait in waits.items() if wait.missing}
    if not waiting:
        return Diagnosis(job, "none", waits, limit_ns)
    reached = {end for each in set(all_ends(waiting, waiting).values()) for end in each}
    reached = reached or all_missing(waiting)
    return Diagnosis(job, "slow", waits, limit_ns, tuple(sorted(reached)), tuple(sorted(waiting)))


def _blames(divergence: Divergence | None, culprits: Sequence[int]) -> bool:
    """Whether it says that one of some ranks left out a collective or issued one more."""
    return divergence is not None and divergence.what in ("skipped", "extra") and divergence.rank in culprits


def _late(
    job: Job,
    limit_ns: int,
    waits: Mapping[int, Wait],
    waiting: Mapping[int, Wait],
    reached: Sequence[int],
) -> Diagnosis:
    stuck = tuple(sorted(waiting))
    absent = tuple(rank for rank in reached if rank not in job.ranks)
    late = tuple(rank for rank in reached if rank in job.ranks)
    culprits = late or absent
    why: Why = "late" if late else "no file"
    both_sides = all(rank in waits and waits[rank].is_point_to_point for rank in late)
    if why == "late" and (both_sides or all(wait.is_point_to_point for wait in waiting.values())):
        why = "no peer"
    long = any(_long_enough(job, rank, limit_ns) for rank in waiting)
    # Once torch's own limit is over, the job has failed, however long ours is.
    given_up = any(job.ranks[rank].timed_out for rank in (*waiting, *late))
    stands = all(_long_enough(job, rank, limit_ns) for rank in late)
    if not (given_up or (long and stands)):
        why = "slow"
    others = outside(job, late) if why == "late" else ()
    if others:
        hung = hung_before(job, (*waiting, *late), limit_ns, others)
        # An end that came of the wait is no cause.
        own = [rank for rank in others if not (job.ranks[rank].is_victim or (hung and rank in waiting))]
        ended = first_gone(job, own)
        if ended is not None:
            return Diagnosis(job, ended[0], waits, limit_ns, ended[1], late)
        candidates = may_not_have_called(job, late)
        if candidates:
            return Diagnosis(job, "late", waits, limit_ns, candidates, late)
    divergence = None if why == "slow" else first_divergence(job)
    if divergence is not None and divergence.what not in ("skipped", "extra"):
        divergence = None
    if why != "slow" and not _blames(divergence, culprits):
        divergence = left_out(job, waits, culprits) or divergence
    if divergence is not None and divergence.rank in culprits:
        why = "skipped" if divergence.what == "skipped" else "extra"
    return Diagnosis(job, why, waits, limit_ns, culprits, stuck, (), (), divergence)
