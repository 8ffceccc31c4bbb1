"""Evidence in the steps of ranks that one left out a collective or issued it once more.

A loop over parameters issues collectives of several sizes from one line. So the line does not separate them,
and different sizes are not a mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.rank import Key
from shardtoll.analyzers.hang.standing.sorts import Sized, sized
from shardtoll.analyzers.hang.standing.whole_steps import cut_step
from shardtoll.ledger.answers.hang import Divergence
from shardtoll.ledger.records.flight import FlightCall


def ahead(calls: Mapping[int, FlightCall]) -> tuple[int, ...]:
    """Return the ranks that issued one collective in a later step than others: they left some out before."""
    steps = {rank: call.step for rank, call in calls.items() if call.step is not None}
    if len(steps) < len(calls) or len(set(steps.values())) < 2:
        return ()
    first = min(steps.values())
    return tuple(sorted(rank for rank, step in steps.items() if step > first))


def apart(
    job: Job, key: Key, place: int, calls: Mapping[int, FlightCall], further: tuple[int, ...]
) -> Divergence:
    """Say who is at fault if ranks stand in different steps: who left one out, or issued one more.

    `further`: the ranks that are ahead.
    """
    behind = tuple(rank for rank in calls if rank not in further)
    mine, theirs = calls[further[0]], calls[behind[0]]
    issued = _by_step(job, key, calls, place + 1)
    now = issued.get((behind[0], theirs.step or 0), []).count(sized(theirs))
    before, whole = _usual(job, issued, theirs)
    if not whole and theirs.nth_in_step is not None and theirs.most_in_step is not None:
        # The record has lost a part of the steps, the rank had counted them.
        now, before, whole = theirs.nth_in_step, theirs.most_in_step, True
    # Most ranks decide. If two sides are equally many, earlier steps suggest who is right: a step may need
    # more, or fewer.
    certain = len(behind) != len(further)
    known = before > 0 and (whole or before >= now)
    extra = len(behind) < len(further) if certain or not known else now > before
    if extra:
        return Divergence(behind[0], theirs, further, mine, "extra", certain)
    return Divergence(further[0], mine, behind, theirs, "skipped", certain)


def in_a_loop(job: Job, key: Key, place: int, odd: int, mine: FlightCall, theirs: FlightCall) -> str | None:
    """Return `skipped` or `extra` if one line issues several sizes; None if the size is what differs."""
    if mine.step is None or theirs.step != mine.step:
        return None
    issued = _by_step(job, key, [rank for rank in key[1] if rank in job.ranks], place)
    usual, whole = _usual(job, issued, mine)
    if not whole and 0 < (mine.most_in_step or 0) < (mine.nth_in_step or 0):
        return "extra"
    if whole and 0 < usual <= issued.get((odd, mine.step), []).count(sized(mine)):
        return "extra"
    for (_, step), sorts in issued.items():
        if step < mine.step and sized(theirs) in sorts and sized(mine) in sorts[sorts.index(sized(theirs)) :]:
            return "skipped"
    return None


def _usual(job: Job, issued: Mapping[tuple[int, int], list[Sized]], call: FlightCall) -> tuple[int, bool]:
    """Return how many such calls an earlier step had at most, and whether a step that is whole had some.

    The record may have lost the beginning of a rank's first step: that step had at least so many.
    """
    earlier = {key: sorts.count(sized(call)) for key, sorts in issued.items() if key[1] < (call.step or 0)}
    whole = any(many and step != cut_step(job.ranks[rank].flight) for (rank, step), many in earlier.items())
    return max(earlier.values(), default=0), whole


def _by_step(job: Job, key: Key, ranks: Iterable[int], before: int) -> dict[tuple[int, int], list[Sized]]:
    """Return what ranks issued in a group before a place, in order, by rank and known step."""
    made: dict[tuple[int, int], list[Sized]] = {}
    for rank in ranks:
        for (of, at), call in sorted(job.ranks[rank].by_place.items(), key=lambda each: each[0][1]):
            if of == key and at < before and call.step is not None:
                made.setdefault((rank, call.step), []).append(sized(call))
    return made
