"""A rank that did as many steps as others, and fewer collectives: it left some out that nobody saw."""

from __future__ import annotations

from shardtoll.analyzers.hang.judging.diagnosis import Diagnosis
from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.rank import Key
from shardtoll.analyzers.hang.verdict.wording import capital, numbers, verb
from shardtoll.ledger.words import human


def fewer_than_others(diagnosis: Diagnosis) -> str | None:
    """Say so of the ranks at fault; None if they are not known to have come as far as the others.

    Collectives of C++ in watched steps have no line and no step: the groups' own counts give their number.
    """
    job, culprits = diagnosis.job, diagnosis.culprits
    steps = [job.ranks[rank].flight.step for rank in culprits]
    theirs = [job.ranks[rank].last_step for rank in diagnosis.stuck]
    known = [step for step in (*steps, *theirs) if step is not None]
    if not culprits or not theirs or len(known) < len(steps) + len(theirs):
        return None
    if min(step for step in steps if step is not None) < max(step for step in theirs if step is not None):
        return None
    if max(known) < 1:
        # An audit without `session.step()` is one step, however many batches each rank has.
        return None
    for key, ranks in job.members.items():
        within = set(ranks)
        others = [rank for rank in diagnosis.stuck if rank in within]
        if not others or not within.issuperset(culprits):
            continue
        least = min(job.issued(rank, key) or 0 for rank in culprits)
        further = [rank for rank in others if _skips_show(diagnosis, rank, key, least)]
        if least > 0 and further:
            most = max(job.issued(rank, key) or 0 for rank in further)
            fewer = human.plural(most - least, "collective")
            who = f"{capital(numbers(culprits))} finished after as many steps as {numbers(others)}"
            did = f"{verb(culprits, 'it', 'they')} skipped some before"
            return f"{who}, but with {fewer} fewer in group {key[0]}: {did}"
    return None


def _skips_show(diagnosis: Diagnosis, rank: int, key: Key, least: int) -> bool:
    """Whether a rank has issued more collectives than another one, beyond those that it still waits in.

    Code may issue collectives after the last step, as a validation or a last barrier. A rank that is through
    has not issued the one that others wait in, and has skipped none. C++ issues them in the steps alone.
    """
    job = diagnosis.job
    issued = job.issued(rank, key) or 0
    if issued <= least:
        return False
    wait = diagnosis.waits.get(rank)
    if (wait is None or wait.call is None) and (key, issued) not in job.ranks[rank].by_place:
        return True
    return issued - least > max(_in_flight(job, rank, key), 1)


def _in_flight(job: Job, rank: int, key: Key) -> int:
    """Return how many collectives of a group a rank has not seen the end of."""
    calls = job.ranks[rank].by_place.items()
    return sum(of == key and call.finished_ns is None for (of, _), call in calls)
