"""Points on which ranks disagree: on one collective, and on what comes next in their programs."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.rank import Key, Rank
from shardtoll.ledger.answers.hang import Difference
from shardtoll.ledger.records.flight import FlightCall

_SAME_SIZE: Final = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
"""Operations whose message is as large on every rank."""
_SAME: Final = ("op", "root", "reduce_op", "dtype", "message_bytes")
MOST_PLACES: Final = 600
_STEPS_AHEAD: Final = 2
"""A host that is this many steps further than its accelerator has waited for it in between."""


def differences_at(
    job: Job, key: Key, place: int, calls: Mapping[int, FlightCall] | None = None
) -> tuple[Difference, ...]:
    """Return what `differences` does of the collective at a place; `calls`: of these ranks alone."""
    calls = job.at(key, place) if calls is None else calls
    return differences(calls, len(key[1]), lambda: _before(job, key, place))


def differences(
    calls: Mapping[int, FlightCall], members: int, before: Callable[[], Mapping[int, FlightCall]] = dict
) -> tuple[Difference, ...]:
    """Return what ranks say otherwise of one collective than most, by the first thing that differs.

    `members`: how many ranks the group has; some of them may not have come. `before` returns the collective
    as the same lines issued it last: if two sides are equally many, it says who is right. It is asked only
    then.
    """
    for what in _SAME:
        said = {
            rank: getattr(call, what)
            for rank, call in calls.items()
            if what != "message_bytes" or call.op in _SAME_SIZE
        }
        said = {rank: value for rank, value in said.items() if value is not None}
        if len(set(said.values())) > 1:
            usual = _most(said, what, before)
            return tuple(
                Difference(rank, what, value, usual) for rank, value in sorted(said.items()) if value != usual
            )
    return _splits(calls) if len(calls) >= members else ()


def got_past(job: Job, key: Key, place: int, what: str) -> bool:
    """Whether all ranks of a group finished an earlier collective on which they disagreed in the same way."""
    op = {call.op for call in job.at(key, place).values()}
    places = job.places(key)
    earlier = places[: bisect_left(places, place)]
    for at in reversed(earlier[-MOST_PLACES:]):
        calls = job.at(key, at)
        if {call.op for call in calls.values()} != op or len(calls) < len(key[1]):
            continue
        if not all(_is_past(job.ranks[rank], call) for rank, call in calls.items()):
            continue
        unlike = differences(calls, len(key[1]))
        if unlike and unlike[0].what == what:
            return True
    return False


def _is_past(rank: Rank, call: FlightCall) -> bool:
    """Whether a rank got past a call: it finished, or, on an accelerator, it is steps ago."""
    if call.finished_ns is not None:
        return True
    last = rank.last_call
    if rank.flight.waits_block or last is None or last.step is None or call.step is None:
        return False
    return last.step - call.step >= _STEPS_AHEAD


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


def _before(job: Job, key: Key, place: int) -> Mapping[int, FlightCall]:
    """Return the last collective before a place that the same lines issued; empty without one."""
    lines = {(call.op, call.source) for call in job.at(key, place).values()}
    places = job.places(key)
    for earlier in reversed(places[: bisect_left(places, place)][-MOST_PLACES:]):
        calls = job.at(key, earlier)
        if {(call.op, call.source) for call in calls.values()} == lines:
            return calls
    return {}


def _most(said: Mapping[int, Any], what: str, before: Callable[[], Mapping[int, FlightCall]]) -> Any:
    """Return what most say; of equally many what all said `before`, else the side of the lowest rank."""
    counts = Counter(said.values())
    most = max(counts.values())
    tied = [value for value, count in counts.items() if count == most]
    earlier = {getattr(call, what) for call in before().values()} if len(tied) > 1 else set()
    if len(earlier) == 1 and earlier <= set(tied):
        return earlier.pop()
    return min(tied, key=lambda value: min(rank for rank, there in said.items() if there == value))
