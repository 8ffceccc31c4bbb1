"""Finds the point at which the programs of ranks first differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from shardtoll.analyzers.hang.order.odd_side import diverge, line_of
from shardtoll.analyzers.hang.order.program_order import across
from shardtoll.analyzers.hang.order.step_counts import ahead, apart
from shardtoll.analyzers.hang.standing.differing import MOST_PLACES, differences_at
from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.rank import Key
from shardtoll.ledger.answers.hang import Divergence
from shardtoll.ledger.records.flight import FlightCall


def first_divergence(job: Job) -> Divergence | None:
    """Return where the programs of ranks first differ; None if they do not, as far as they are known.

    A collective that ranks disagree on counts, and one that comes next on one rank and not on another. A line
    of the user's only if both ranks have issued from the same lines before.
    """
    strong: list[Divergence] = []
    weak: list[Divergence] = []
    for key, ranks in job.members.items():
        present = [rank for rank in ranks if rank in job.ranks]
        if len(present) < 2:
            continue
        divergence = _within(job, key, present)
        if divergence is not None:
            (weak if divergence.what == "line" else strong).append(divergence)
    for divergence in across(job):
        strong.append(divergence)
    both = sorted([*strong, *weak], key=_when)
    if not both:
        return None
    if both[0].what == "line" and strong and both[0].call.step != strong[0].call.step and not both[0].certain:
        return min(strong, key=_when)
    return both[0]


def _when(divergence: Divergence) -> tuple[int, int]:
    times = [call.issued_ns for call in (divergence.call, divergence.others_call) if call.issued_ns]
    return min(times, default=1 << 62), divergence.what == "line"


def _within(job: Job, key: Key, ranks: Sequence[int]) -> Divergence | None:
    """Return the first collective of a group that ranks disagree on."""
    places = sorted({place for rank in ranks for (of, place) in job.ranks[rank].by_place if of == key})
    met: Counter[tuple[int, object]] = Counter()
    for place in places[-MOST_PLACES:]:
        calls = {rank: call for rank, call in job.at(key, place).items() if rank in ranks}
        if len(calls) < 2:
            continue
        unlike = differences_at(job, key, place, calls)
        by_line = not unlike and len({line_of(call) for call in calls.values()}) > 1
        further = ahead(calls)
        if further:
            return apart(job, key, place, calls, further)
        if unlike or (by_line and _met_before(met, calls)):
            return diverge(job, key, place, calls, unlike)
        met.update((rank, line_of(call)) for rank, call in calls.items())
        if by_line:
            # Ranks take branches of their own here: their lines say nothing.
            met.update((rank, None) for rank in calls)
    return None


def _met_before(met: Counter[tuple[int, object]], calls: Mapping[int, FlightCall]) -> bool:
    """Whether every rank has issued from each of these lines before, together with the others."""
    lines = {line_of(call) for call in calls.values()}
    if None in lines or any(met[rank, None] for rank in calls):
        return False
    return all(any(met[rank, line] for rank in calls) for line in lines)


def parted(job: Job) -> Divergence | None:
    """Return where programs first differ if ranks did not get past it; None if they did, or do not differ.

    Ranks may take branches of their own, and sizes may differ, if all of them go on.
    """
    divergence = first_divergence(job)
    if divergence is None:
        return None
    both = divergence.call, divergence.others_call
    if all(call.finished_ns is not None for call in both) and divergence.what not in ("skipped", "extra"):
        return None
    return divergence
