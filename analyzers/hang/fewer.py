"""A rank that did as many steps as others, and fewer collectives: it left some out that nobody saw."""

from __future__ import annotations

from shardtoll.analyzers.hang.diagnosis import Diagnosis
from shardtoll.analyzers.hang.wording import capital, numbers, verb
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
    for key, ranks in job.members.items():
        others = [rank for rank in diagnosis.stuck if rank in ranks]
        if not others or not set(culprits) <= set(ranks):
            continue
        most = max(job.issued(rank, key) or 0 for rank in others)
        least = min(job.issued(rank, key) or 0 for rank in culprits)
        if 0 < least < most:
            audits = verb(culprits, "its audit", "their audits")
            fewer = human.plural(most - least, "collective")
            who = f"{capital(numbers(culprits))} ended {audits} after as many steps as {numbers(others)}"
            did = f"{verb(culprits, 'it', 'they')} skipped some before"
            return f"{who}, but with {fewer} fewer in group {key[0]}: {did}"
    return None
