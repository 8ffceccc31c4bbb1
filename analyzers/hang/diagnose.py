"""From the flights of a job's ranks to one answer: is it a hang, who is at fault, and where."""

from __future__ import annotations

from collections.abc import Sequence

from shardtoll.analyzers.hang.judging.chains import all_missing
from shardtoll.analyzers.hang.judging.judge import judge
from shardtoll.analyzers.hang.standing.job import DEFAULT_AFTER_NS, Job
from shardtoll.analyzers.hang.stands import group_stands, rank_stand
from shardtoll.analyzers.hang.verdict.hang_finding import finding_of
from shardtoll.analyzers.hang.verdict.sentence import sentence
from shardtoll.ledger.answers.hang import HangAnswer, RankStand
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
    stands = tuple(rank_stand(job, number, diagnosis.waits) for number in job.ranks)
    waited_for = all_missing(diagnosis.waits)
    absent = tuple(RankStand(rank, "no file") for rank in job.absent() if rank in waited_for)
    return HangAnswer(
        hang=diagnosis.hang,
        why=diagnosis.why,
        verdict=sentence(diagnosis),
        ranks=tuple(sorted((*stands, *absent), key=lambda stand: stand.rank)),
        groups=group_stands(job, diagnosis.waits),
        cycle=diagnosis.cycle,
        divergence=diagnosis.parted,
        findings=(finding_of(diagnosis),) if diagnosis.hang else (),
        notes=tuple(notes),
        hang_after_ns=limit_ns,
    )
