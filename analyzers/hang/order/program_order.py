"""Finds two ranks that issue the collectives of the groups that they share in different order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.rank import Key
from shardtoll.analyzers.hang.standing.sorts import Sort, sort_of
from shardtoll.analyzers.hang.standing.whole_steps import cut_step
from shardtoll.ledger.answers.hang import Divergence
from shardtoll.ledger.records.flight import FlightCall

_MOST_RANKS: Final = 64
"""Ranks whose programs are compared two by two."""

_Program = list[tuple[Key, FlightCall]]
"""A rank's collectives with their groups, in program order."""


def across(job: Job) -> list[Divergence]:
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


def odd_ones(job: Job, divergence: Divergence) -> tuple[int, ...]:
    """Return the ranks on the odd side of another order, ascending; none if nothing says which side it is."""
    if not divergence.certain:
        return ()
    programs = {number: _program(job, number) for number in job.ranks}
    other = divergence.others[0]
    keys = _keys(job, divergence.rank, divergence.call), _keys(job, other, divergence.others_call)
    return tuple(sorted({divergence.rank, *_by_order(programs, *keys)[0]}))


def _program(job: Job, number: int) -> _Program:
    """Return a rank's collectives, sends and receives left out, in program order with their groups."""
    calls = job.ranks[number].flight.calls
    keyed = [(job.key(number, call.group), call) for call in calls]
    return [(key, call) for key, call in keyed if call.place is not None and not call.is_point_to_point]


def _order(mine: _Program, theirs: _Program) -> tuple[FlightCall, FlightCall] | None:
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
    programs: Mapping[int, _Program],
    rank: int,
    other: int,
    pair: tuple[FlightCall, FlightCall],
) -> Divergence:
    """Name the odd one of two ranks whose programs differ: by most ranks, else by earlier steps."""
    first, second = pair
    sides = _by_order(programs, _keys(job, rank, first), _keys(job, other, second))
    certain = len(sides[0]) != len(sides[1])
    odd = 0 if len(sides[0]) < len(sides[1]) else 1
    steps = first.step, second.step
    skipped = steps[0] is not None and steps[1] is not None and steps[0] != steps[1]
    if skipped:
        # Who is further on left out what the other is in.
        certain, odd = True, 0 if (steps[0] or 0) > (steps[1] or 0) else 1
    more = None if skipped else one_more(job, programs, (rank, other), pair)
    if more is not None and not certain:
        odd = more
    elif not (skipped or certain):
        habit = _usual(programs, first, second)
        certain = habit is not None
        odd = 1 if habit is None or habit is first else 0
    mine, theirs = pair[odd], pair[1 - odd]
    numbers = sides[odd] or [(rank, other)[odd]]
    others = tuple(sides[1 - odd]) or ((rank, other)[1 - odd],)
    if more == odd:
        # Others may come to it next: that they never do is what earlier steps suggest.
        return Divergence(numbers[0], mine, others, theirs, "extra", certain=False)
    return Divergence(numbers[0], mine, others, theirs, "skipped" if skipped else "order", certain)


Place = tuple[Key, int | None]
"""Group and place in it."""


def _keys(job: Job, rank: int, call: FlightCall) -> Place:
    return job.key(rank, call.group), call.place


def _by_order(programs: Mapping[int, _Program], first: Place, second: Place) -> tuple[list[int], list[int]]:
    """Return the ranks of both groups that issue the first of two collectives first, and the second first."""
    sides: tuple[list[int], list[int]] = ([], [])
    for number, program in programs.items():
        order = [place for place in ((key, call.place) for key, call in program) if place in (first, second)]
        if order and number in first[0][1] and number in second[0][1]:
            sides[order[0] == second].append(number)
    return sides


def _usual(programs: Mapping[int, _Program], first: FlightCall, second: FlightCall) -> FlightCall | None:
    """Return which of two collectives came before the other in earlier steps; None if neither did."""
    votes = 0
    for program in programs.values():
        earlier: FlightCall | None = None
        for _, call in program:
            if call.step in (first.step, second.step):
                break
            if earlier is not None and earlier.step == call.step:
                pair = _in_group(earlier), _in_group(call)
                votes += pair == (_in_group(first), _in_group(second))
                votes -= pair == (_in_group(second), _in_group(first))
            earlier = call
    return None if votes == 0 else first if votes > 0 else second


def _in_group(call: FlightCall) -> tuple[str, Sort]:
    return call.group, sort_of(call)


def one_more(
    job: Job, programs: Mapping[int, _Program], ranks: tuple[int, int], pair: tuple[FlightCall, FlightCall]
) -> int | None:
    """Return which of two calls is one more than earlier steps had; None if both or neither."""
    more = [_exceeds(job, programs, rank, call) for rank, call in zip(ranks, pair, strict=True)]
    return more.index(True) if more.count(True) == 1 else None


def _exceeds(job: Job, programs: Mapping[int, _Program], rank: int, call: FlightCall) -> bool:
    """Whether a call is more than any earlier step had of its sort, and one of these steps is whole.

    A sort that no step had before may be new to all ranks, and come later on the others. It is one more only
    if this step has had all the collectives of its group that earlier steps had.
    """
    seen: Counter[tuple[int, int | None]] = Counter()
    in_group: Counter[tuple[int, int | None]] = Counter()
    sorts = set()
    for number, program in programs.items():
        for _, each in program:
            if each.group == call.group and _is_before(each.step, call.step):
                sorts.add(sort_of(each))
                in_group[number, each.step] += 1
                seen[number, each.step] += sort_of(each) == sort_of(call)
    # The record may have lost the earlier ones; the rank that issued them has counted them.
    is_new = sort_of(call) not in sorts and not call.most_in_step
    now = 1 + sum(
        each.group == call.group
        and each.step == call.step
        and each.number < call.number
        and (sort_of(each) in sorts if is_new else sort_of(each) == sort_of(call))
        for _, each in programs[rank]
    )
    earlier = in_group if is_new else seen
    # A step that is cut says how many it had at least: never that it had fewer than now.
    whole = any(
        many and step != cut_step(job.ranks[number].flight) for (number, step), many in earlier.items()
    )
    if not whole and not is_new and _is_one_kind(programs, call):
        return call.nth_in_step is not None and 0 < (call.most_in_step or 0) < call.nth_in_step
    return whole and now > max(earlier.values())


def _is_one_kind(programs: Mapping[int, _Program], call: FlightCall) -> bool:
    """Whether all calls of its sort have its size: each rank counts by size, and sizes may come in turn."""
    sizes = {
        each.message_bytes
        for program in programs.values()
        for _, each in program
        if each.group == call.group and sort_of(each) == sort_of(call)
    }
    return len(sizes) == 1


def _is_before(step: int | None, other: int | None) -> bool:
    return step is not None and other is not None and step < other
