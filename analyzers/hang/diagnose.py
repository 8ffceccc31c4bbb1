"""From the flights of a job's ranks to one answer: is it a hang, who is at fault, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardtoll.analyzers.hang.judging.chains import all_missing, in_collective
from shardtoll.analyzers.hang.judging.judge import judge
from shardtoll.analyzers.hang.judging.pairs import unlike_pair
from shardtoll.analyzers.hang.standing.differing import differences_at
from shardtoll.analyzers.hang.standing.job import DEFAULT_AFTER_NS, Job
from shardtoll.analyzers.hang.standing.waiting import Wait
from shardtoll.analyzers.hang.verdict.hang_finding import finding_of
from shardtoll.analyzers.hang.verdict.hang_sentence import sentence
from shardtoll.ledger.answers.hang import Difference, GroupStand, HangAnswer, RankStand
from shardtoll.ledger.records.flight import RankFlight


def diagnose(
    flights: Sequence[RankFlight], now_ns: int, after_ns: int | None = None, notes: Sequence[str] = ()
) -> HangAnswer:
    """Return the diagnosis of one job. `now_ns`: when the files were read, in ns since 1970.

    Ranks that wait for one that is elsewhere in its program hang after `after_ns`. None: the limit of the
    job's own audit, else two minutes. A wait that can never end is a hang after a second.
    """
    job = Job(flights, now_ns)
    limit_ns = after_ns or max(
        (rank.flight.hang_after_ns for rank in job.ranks.values() if rank.flight.hang_after_ns),
        default=DEFAULT_AFTER_NS,
    )
    diagnosis = judge(job, limit_ns)
    stands = tuple(_rank_stand(job, number, diagnosis.waits) for number in job.ranks)
    waited_for = all_missing(diagnosis.waits)
    absent = tuple(RankStand(rank, "no file") for rank in job.absent() if rank in waited_for)
    return HangAnswer(
        hang=diagnosis.hang,
        why=diagnosis.why,
        verdict=sentence(diagnosis),
        ranks=tuple(sorted((*stands, *absent), key=lambda stand: stand.rank)),
        groups=_group_stands(job, diagnosis.waits),
        cycle=diagnosis.cycle,
        divergence=diagnosis.parted,
        findings=(finding_of(diagnosis),) if diagnosis.hang else (),
        notes=tuple(notes),
        hang_after_ns=limit_ns,
    )


def _rank_stand(job: Job, number: int, waits: Mapping[int, Wait]) -> RankStand:
    """Return where a rank stands."""
    rank, wait = job.ranks[number], waits.get(number)
    flight = rank.flight
    standing = rank.standing
    if standing == "waits" and wait is None:
        standing = "runs"
    call = wait.call if wait is not None else rank.blocked_call or rank.last_call
    return RankStand(
        rank=number,
        standing=standing,
        call=call,
        # 0: it moved after its last heartbeat.
        for_ns=rank.for_ns or None,
        line=flight.line if flight.line and standing != "waits" else _line(call, flight.line),
        waits_for=() if wait is None else wait.missing,
        step=flight.step,
        error=flight.error,
        heartbeat_age_ns=rank.beat_age_ns,
        host=flight.host,
        pid=flight.pid,
        stacks=flight.stacks,
        issued=_issued(flight),
    )


def _issued(flight: RankFlight) -> int | None:
    unseen = not flight.calls and any(group.issued_place for group in flight.groups)
    if flight.source != "flight" or unseen:
        return None
    return max((call.number for call in flight.calls), default=0)


def _line(call: object, otherwise: str | None) -> str | None:
    return getattr(call, "source", None) or otherwise


def _group_stands(job: Job, waits: Mapping[int, Wait]) -> tuple[GroupStand, ...]:
    """Return each collective that ranks wait in, once."""
    stands, seen = [], set()
    for rank, wait in sorted(waits.items()):
        # Sends and receives have places of their own: each is reported alone.
        which = wait.key, wait.place, rank if wait.is_point_to_point else None
        if which in seen:
            continue
        seen.add(which)
        call, name = wait.call, wait.key[0]
        known = [each.flight.group(name) for each in job.ranks.values()]
        finished = [group.finished_place for group in known if group and group.finished_place is not None]
        here = job.ranks[rank].flight.group(name)
        unlike: tuple[Difference, ...] = ()
        if wait.is_point_to_point:
            unlike = unlike_pair(job, wait)
        elif wait.place is not None and call is not None:
            unlike = differences_at(job, wait.key, wait.place)
        stands.append(
            GroupStand(
                group=name,
                ranks=wait.key[1] if wait.key not in job.unlisted else (),
                description=None if here is None else here.description,
                op="unknown" if call is None else call.op,
                place=wait.place,
                message_bytes=None if call is None else call.message_bytes,
                finished_place=max(finished, default=None),
                waiting=in_collective(waits, wait),
                missing=wait.missing,
                differences=unlike,
            )
        )
    return tuple(stands)
