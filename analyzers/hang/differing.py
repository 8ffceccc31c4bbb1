"""Where ranks disagree: on what one collective is, and on what comes next in their programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shardtoll.analyzers.hang.job import Job, Key
from shardtoll.ledger.answers.hang import Difference, Divergence
from shardtoll.ledger.records.flight import FlightCall

_SAME_SIZE: Final = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
"""Operations whose message is as large on every rank."""
_SAME: Final = ("op", "root", "reduce_op", "dtype", "message_bytes")
_MOST_PLACES: Final = 600
_MOST_RANKS: Final = 64
"""Ranks whose programs are compared two by two."""


def differences(calls: Mapping[int, FlightCall], members: int) -> tuple[Difference, ...]:
    """Return what ranks say otherwise of one collective than most, by the first thing that differs.

    `members`: how many ranks the group has, of which some may not have come.
    """
    for what in _SAME:
        said = {
            rank: getattr(call, what)
            for rank, call in calls.items()
            if what != "message_bytes" or call.op in _SAME_SIZE
        }
        said = {rank: value for rank, value in said.items() if value is not None}
        if len(set(said.values())) > 1:
            usual = _most(said)
            return tuple(
                Difference(rank, what, value, usual) for rank, value in sorted(said.items()) if value != usual
            )
    return _splits(calls) if len(calls) >= members else ()


def got_past(job: Job, key: Key, place: int, what: str) -> bool:
    """Whether all ranks of a group finished an earlier collective on which they disagreed in the same way."""
    op = {call.op for call in job.at(key, place).values()}
    earlier = sorted(
        {at for rank in job.ranks.values() for (of, at) in rank.by_place if of == key and at < place}
    )
    for at in reversed(earlier[-_MOST_PLACES:]):
        calls = job.at(key, at)
        if {call.op for call in calls.values()} != op or len(calls) < len(key[1]):
            continue
        unlike = differences(calls, len(key[1]))
        if unlike and unlike[0].what == what and all(call.finished_ns is not None for call in calls.values()):
            return True
    return False


def _splits(calls: Mapping[int, FlightCall]) -> tuple[Difference, ...]:
    """Return how an all_to_all of which all ranks are known sends more or less in all than it receives."""
    if len(calls) < 2 or any(call.op != "all_to_all" for call in calls.values()):
        return ()
    sizes = {rank: (call.message_bytes, call.received_bytes) for rank, call in calls.items()}
    if any(sent is None or got is None for sent, got in sizes.values()):
        return ()
    if sum(sent or 0 for sent, _ in sizes.values()) == sum(got or 0 for _, got in sizes.values()):
        return ()
    uneven = {rank: pair for rank, pair in sizes.items() if pair[0] != pair[1]} or sizes
    return tuple(Difference(rank, "splits", sent, got) for rank, (sent, got) in sorted(uneven.items()))


def _most(said: Mapping[int, Any]) -> Any:
    """Return what most ranks say; of equally many the side of the lowest rank."""
    counts = Counter(said.values())
    return max(counts, key=lambda value: (counts[value], -min(r for r, v in said.items() if v == value)))


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
    for divergence in _across(job):
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
    for place in places[-_MOST_PLACES:]:
        calls = {rank: call for rank, call in job.at(key, place).items() if rank in ranks}
        if len(calls) < 2:
            continue
        unlike = differences(calls, len(key[1]))
        by_line = not unlike and len({_line(call) for call in calls.values()}) > 1
        ahead = () if unlike else _ahead(calls)
        if ahead:
            behind = tuple(rank for rank in calls if rank not in ahead)
            return Divergence(ahead[0], calls[ahead[0]], behind, calls[behind[0]], "skipped", certain=True)
        if unlike or (by_line and _met_before(met, calls)):
            return _diverge(job, key, place, calls, unlike[0].what if unlike else "line")
        met.update((rank, _line(call)) for rank, call in calls.items())
        if by_line:
            # Ranks take branches of their own here: their lines say nothing.
            met.update((rank, None) for rank in calls)
    return None


def _ahead(calls: Mapping[int, FlightCall]) -> tuple[int, ...]:
    """Return the ranks that issued one collective in a later step than others: they left some out before."""
    steps = {rank: call.step for rank, call in calls.items() if call.step is not None}
    if len(steps) < len(calls) or len(set(steps.values())) < 2:
        return ()
    first = min(steps.values())
    return tuple(sorted(rank for rank, step in steps.items() if step > first))


def _line(call: FlightCall) -> str | None:
    return call.source


def _met_before(met: Counter[tuple[int, str | None]], calls: Mapping[int, FlightCall]) -> bool:
    """Whether every rank has issued from each of these lines before, together with the others."""
    lines = {_line(call) for call in calls.values()}
    if None in lines or any(met[rank, None] for rank in calls):
        return False
    return all(any(met[rank, line] for rank in calls) for line in lines)


def _diverge(job: Job, key: Key, place: int, calls: Mapping[int, FlightCall], what: str) -> Divergence:
    """Name the odd side of a disagreement: the one that leaves what came next before."""
    sides: dict[tuple[object, ...], list[int]] = {}
    for rank, call in calls.items():
        value = _line(call) if what == "line" else getattr(call, what, None)
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
    return Divergence(odd[0], mine, tuple(sorted(usual)), theirs, said, certain)


def _follows(job: Job, key: Key, place: int, ranks: Iterable[int]) -> Counter[tuple[object, object]]:
    """Count which kind of collective came right after which, before a place of the group."""
    pairs: Counter[tuple[object, object]] = Counter()
    for rank in ranks:
        earlier: FlightCall | None = None
        calls = job.ranks[rank].by_place
        for current in sorted(at for (of, at) in calls if of == key and at < place):
            call = calls[key, current]
            if earlier is not None:
                pairs[_sort(earlier), _sort(call)] += 1
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
    pairs = _follows(job, key, place, ranks)
    counts = [pairs[_sort(before), _sort(call)] for call in (first, second)]
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


def _across(job: Job) -> list[Divergence]:
    """Return where two ranks issue collectives of the groups that they share in different order."""
    programs = {number: _program(job, number) for number in job.ranks}
    diverged = []
    members = sorted(job.ranks)[:_MOST_RANKS]
    for place, rank in enumerate(members):
        for other in members[place + 1 :]:
            shared = {key for key, ranks in job.members.items() if rank in ranks and other in ranks}
            if len(shared) < 2:
                continue
            pair = _order(
                *([(key, call) for key, call in programs[each] if key in shared] for each in (rank, other))
            )
            if pair is not None:
                diverged.append(_sides(job, programs, rank, other, pair))
    return diverged


Program = list[tuple[Key, FlightCall]]


def _program(job: Job, number: int) -> Program:
    """Return a rank's collectives, sends and receives left out, in program order with their groups."""
    calls = job.ranks[number].flight.calls
    keyed = [(job.key(number, call.group), call) for call in calls]
    return [(key, call) for key, call in keyed if call.place is not None and not call.is_point_to_point]


def _order(mine: Program, theirs: Program) -> tuple[FlightCall, FlightCall] | None:
    """Return the first calls in which two programs differ; None if they do not, as far as both are known."""
    places = {(key, call.place): index for index, (key, call) in enumerate(theirs)}
    begin = next((index for index, (key, call) in enumerate(mine) if (key, call.place) in places), None)
    if begin is None:
        return None
    offset = places[mine[begin][0], mine[begin][1].place] - begin
    for index in range(begin, min(len(mine), len(theirs) - offset)):
        (key, call), (other_key, other) = mine[index], theirs[index + offset]
        if (key, call.place) != (other_key, other.place):
            return call, other
    return None


def _sides(
    job: Job,
    programs: Mapping[int, Program],
    rank: int,
    other: int,
    pair: tuple[FlightCall, FlightCall],
) -> Divergence:
    """Name the odd one of two ranks whose programs differ: by most ranks, else by earlier steps."""
    first, second = pair
    keys = (job.key(rank, first.group), first.place), (job.key(other, second.group), second.place)
    sides: tuple[list[int], list[int]] = ([], [])
    for number, program in programs.items():
        order = [place for place in ((key, call.place) for key, call in program) if place in keys]
        if order and number in keys[0][0][1] and number in keys[1][0][1]:
            sides[keys.index(order[0])].append(number)
    certain = len(sides[0]) != len(sides[1])
    odd = 0 if len(sides[0]) < len(sides[1]) else 1
    steps = first.step, second.step
    skipped = steps[0] is not None and steps[1] is not None and steps[0] != steps[1]
    if skipped:
        # Who is further on left out what the other is in.
        certain, odd = True, 0 if (steps[0] or 0) > (steps[1] or 0) else 1
    elif not certain:
        habit = _usual(programs, first, second)
        certain = habit is not None
        odd = 1 if habit is None or habit is first else 0
    mine, theirs = pair[odd], pair[1 - odd]
    numbers = sides[odd] or [(rank, other)[odd]]
    others = tuple(sides[1 - odd]) or ((rank, other)[1 - odd],)
    return Divergence(numbers[0], mine, others, theirs, "skipped" if skipped else "order", certain)


def _usual(programs: Mapping[int, Program], first: FlightCall, second: FlightCall) -> FlightCall | None:
    """Return which of two collectives came before the other in earlier steps; None if neither did."""
    votes = 0
    for program in programs.values():
        earlier: FlightCall | None = None
        for _, call in program:
            if call.step in (first.step, second.step):
                break
            if earlier is not None and earlier.step == call.step:
                votes += (_sort_of(earlier), _sort_of(call)) == (_sort_of(first), _sort_of(second))
                votes -= (_sort_of(earlier), _sort_of(call)) == (_sort_of(second), _sort_of(first))
            earlier = call
    return None if votes == 0 else first if votes > 0 else second


def _sort_of(call: FlightCall) -> tuple[str, str, str | None]:
    return call.group, call.op, call.source
