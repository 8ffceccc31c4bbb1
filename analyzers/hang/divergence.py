"""Where the programs of ranks first differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from shardtoll.analyzers.hang.differing import MOST_PLACES, differences_at
from shardtoll.analyzers.hang.job import Job
from shardtoll.analyzers.hang.program_order import across
from shardtoll.analyzers.hang.rank import Key
from shardtoll.analyzers.hang.step_counts import ahead, apart, in_a_loop, sized
from shardtoll.ledger.answers.hang import Difference, Divergence
from shardtoll.ledger.records.flight import FlightCall


def first_divergence(job: Job) -> Divergence | None:
    """Return where the programs of ranks first differ; None if they do not, as far as they are known.

    A collective that ranks disagree on counts, and one that comes next on one rank and not on another; a line
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
    met: Counter[tuple[int, str | None]] = Counter()
    for place in places[-MOST_PLACES:]:
        calls = {rank: call for rank, call in job.at(key, place).items() if rank in ranks}
        if len(calls) < 2:
            continue
        unlike = differences_at(job, key, place, calls)
        by_line = not unlike and len({_line(call) for call in calls.values()}) > 1
        further = ahead(calls)
        if further:
            return apart(job, key, place, calls, further)
        if unlike or (by_line and _met_before(met, calls)):
            return _diverge(job, key, place, calls, unlike)
        met.update((rank, _line(call)) for rank, call in calls.items())
        if by_line:
            # Ranks take branches of their own here: their lines say nothing.
            met.update((rank, None) for rank in calls)
    return None


def _line(call: FlightCall) -> str | None:
    return call.source


def _met_before(met: Counter[tuple[int, str | None]], calls: Mapping[int, FlightCall]) -> bool:
    """Whether every rank has issued from each of these lines before, together with the others."""
    lines = {_line(call) for call in calls.values()}
    if None in lines or any(met[rank, None] for rank in calls):
        return False
    return all(any(met[rank, line] for rank in calls) for line in lines)


def _diverge(
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
        value = _line(call) if what == "line" else getattr(call, what, rank in uneven)
        sides.setdefault((value,) if what in ("line", "op") else (value, _line(call)), []).append(rank)
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
    if mine.source != theirs.source:
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


def _sort(call: FlightCall) -> tuple[str, str | None]:
    return call.op, call.source


def _habit(
    job: Job, key: Key, place: int, first: FlightCall, second: FlightCall, ranks: Iterable[int]
) -> FlightCall | None:
    """Return which of two collectives usually comes after the one before this place; None if neither does."""
    ranks = list(ranks)
    before = next((call for rank, call in job.at(key, place - 1).items() if rank in ranks), None)
    if before is None:
        return None
    sort = sized if _sort(first) == _sort(second) else _sort
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
    seen = {_sort(call) for call in earlier}
    if _sort(mine) not in seen:
        return "extra" if _sort(theirs) in seen else None
    a_step = Counter((call.step, _sort(call)) for call in earlier if call.step != mine.step)
    usual = max((many for (_, sort), many in a_step.items() if sort == _sort(mine)), default=0)
    before = [call for (of, at), call in job.ranks[odd].by_place.items() if of == key and at < place]
    now = sum(call.step == mine.step and _sort(call) == _sort(mine) for call in before)
    if mine.step is not None and 0 < usual // max(len(members), 1) <= now:
        return "extra"
    return "skipped"
