"""Whether a collective is one more than earlier steps had, or only earlier than on other ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.rank import Key
from shardtoll.analyzers.hang.standing.sorts import sort_of
from shardtoll.analyzers.hang.standing.whole_steps import cut_step
from shardtoll.ledger.records.flight import FlightCall

Program = list[tuple[Key, FlightCall]]
"""A rank's collectives with their groups, in program order."""


def one_more(
    job: Job, programs: Mapping[int, Program], ranks: tuple[int, int], pair: tuple[FlightCall, FlightCall]
) -> int | None:
    """Return which of two calls is one more than earlier steps had; None if both or neither."""
    more = [_exceeds(job, programs, rank, call) for rank, call in zip(ranks, pair, strict=True)]
    return more.index(True) if more.count(True) == 1 else None


def _exceeds(job: Job, programs: Mapping[int, Program], rank: int, call: FlightCall) -> bool:
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


def _is_one_kind(programs: Mapping[int, Program], call: FlightCall) -> bool:
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
