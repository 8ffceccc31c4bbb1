"""Which side of a disagreement is the odd one, and what it did: skipped a collective, or issued one more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from shardtoll.analyzers.hang.order.step_counts import in_a_loop
from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.rank import Key
from shardtoll.analyzers.hang.standing.sorts import sized, sort_of
from shardtoll.analyzers.hang.standing.whole_steps import cut_step
from shardtoll.ledger.answers.hang import Difference, Divergence
from shardtoll.ledger.records.flight import FlightCall


def line_of(call: FlightCall) -> tuple[str, str | None] | None:
    """Return the line and the module of a call; None if the line is unknown.

    One line of a loop calls many modules, as the layers of a model.
    """
    return None if call.source is None else (call.source, call.module)


def diverge(
    job: Job, key: Key, place: int, calls: Mapping[int, FlightCall], unlike: Sequence[Difference]
) -> Divergence:
    """Name the odd side of a disagreement: the one that leaves what came next before.

    `unlike`: how the calls differ; empty if only their lines do.
    """
    what = unlike[0].what if unlike else "line"
    uneven = {each.rank for each in unlike}
    sides: dict[tuple[object, ...], list[int]] = {}
    for rank, call in calls.items():
        # No field says what is wrong with splits: a rank sends more or less than it is to get.
        value = line_of(call) if what == "line" else getattr(call, what, rank in uneven)
        sides.setdefault((value,) if what in ("line", "op") else (value, line_of(call)), []).append(rank)
    if len(sides) == 1:
        sides = {(rank,): [rank] for rank in calls}
    ordered = sorted(sides.values(), key=lambda ranks: (len(ranks), -min(ranks)))
    odd, usual = ordered[0], ordered[-1]
    certain = len(odd) < len(usual)
    habit = _habit(job, key, place, calls[odd[0]], calls[usual[0]], calls)
    if habit is calls[odd[0]] and not certain:
        odd, usual = usual, odd
    certain = certain or habit is not None
    mine, theirs = calls[odd[0]], calls[usual[0]]
    said = what
    if (mine.source, mine.module) != (theirs.source, theirs.module):
        said = _skipped_or_extra(job, key, place, odd[0], mine, theirs) or what
    elif what == "message_bytes" and habit is not None:
        said = in_a_loop(job, key, place, odd[0], mine, theirs) or what
    return Divergence(odd[0], mine, tuple(sorted(usual)), theirs, said, certain)


def _follows(
    job: Job, key: Key, place: int, ranks: Iterable[int], sort: Callable[[FlightCall], object]
) -> Counter[tuple[object, object]]:
    """Count which kind of collective came right after which, before a place of the group."""
    pairs: Counter[tuple[object, object]] = Counter()
    for rank in ranks:
        earlier: FlightCall | None = None
        calls = job.ranks[rank].by_place
        for current in sorted(at for (of, at) in calls if of == key and at < place):
            call = calls[key, current]
            if earlier is not None:
                pairs[sort(earlier), sort(call)] += 1
            earlier = call
    return pairs


def _habit(
    job: Job, key: Key, place: int, first: FlightCall, second: FlightCall, ranks: Iterable[int]
) -> FlightCall | None:
    """Return which of two collectives usually comes after the one before this place; None if neither does."""
    ranks = list(ranks)
    before = next((call for rank, call in job.at(key, place - 1).items() if rank in ranks), None)
    if before is None:
        return None
    sort = sized if sort_of(first) == sort_of(second) else sort_of
    pairs = _follows(job, key, place, ranks, sort)
    counts = [pairs[sort(before), sort(call)] for call in (first, second)]
    if counts[0] == counts[1]:
        return None
    return first if counts[0] > counts[1] else second


def _skipped_or_extra(
    job: Job, key: Key, place: int, odd: int, mine: FlightCall, theirs: FlightCall
) -> str | None:
    """Return `skipped` if the odd rank left out what the others are in, `extra` if it issued one too many."""
    if mine.step is not None and theirs.step is not None and mine.step != theirs.step:
        return "skipped" if mine.step > theirs.step else None
    members = [rank for rank in key[1] if rank in job.ranks]
    earlier = [
        call
        for rank in members
        for (of, at), call in job.ranks[rank].by_place.items()
        if of == key and at < place
    ]
    seen = {sort_of(call) for call in earlier}
    if sort_of(mine) not in seen:
        return "extra" if sort_of(theirs) in seen else None
    a_step: Counter[tuple[int, int | None]] = Counter()
    for rank in members:
        cut = cut_step(job.ranks[rank].flight)
        # A step whose first collectives the record has lost had at least so many, and may have had more.
        a_step.update(
            (rank, call.step)
            for (of, at), call in job.ranks[rank].by_place.items()
            if of == key
            and at < place
            and call.step not in (mine.step, cut)
            and sort_of(call) == sort_of(mine)
        )
    before = [call for (of, at), call in job.ranks[odd].by_place.items() if of == key and at < place]
    now = sum(call.step == mine.step and sort_of(call) == sort_of(mine) for call in before)
    if mine.step is not None and 0 < max(a_step.values(), default=0) <= now:
        return "extra"
    return "skipped"
