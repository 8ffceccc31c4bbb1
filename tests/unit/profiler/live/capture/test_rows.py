"""Rows of a region: collectives of other threads among the training thread's own; when each was in flight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardtoll.profiler.live.capture.rows import flights, include_elsewhere
from shardtoll.profiler.live.cause.accounting import Span
from shardtoll.profiler.live.cause.pending import Message, PendingCollective, Place, Region, Wait
from shardtoll.profiler.live.times.clock import Clock
from shardtoll.profiler.live.times.spans import RawSpan


def pending(place: Place, issue_ns: int = 0) -> PendingCollective:
    return PendingCollective(Message("all_reduce", "0", 2, "float32", 4, 4, "SUM"), place, issue_ns)


def place(cause: str, **given: Any) -> Place:
    return Place("backward", caused_by_op=cause, **given)


def test_what_other_threads_issued_comes_in_its_place_and_waits_keep_their_owners() -> None:
    own = [pending(issue_ns=10, place=place("a")), pending(issue_ns=30, place=place("b"))]
    other = pending(issue_ns=20, place=place("c"))
    region = Region(
        0, 0, {}, collectives=list(own), elsewhere=[other], waits=[Wait(31, 40, 1), Wait(1, 2, None)]
    )
    include_elsewhere(region)
    assert [c.issue_ns for c in region.collectives] == [10, 20, 30]
    assert [wait.owner for wait in region.waits] == [2, None]


def test_a_hook_that_goes_on_elsewhere_has_the_place_on_which_its_beginnings_agree() -> None:
    first = place("hook", source="train.py:1 (step)", module="up", parameter="up.weight")
    second = place("hook", source="train.py:1 (step)", module="down", parameter="down.weight")
    region = Region(
        0,
        0,
        {},
        collectives=[pending(place=first), pending(place=second)],
        elsewhere=[pending(place=place("hook"), issue_ns=5), pending(place=place("other"), issue_ns=6)],
    )
    include_elsewhere(region)
    hook, other = (c.place for c in region.collectives[2:])
    assert (hook.source, hook.module, hook.parameter) == ("train.py:1 (step)", None, None)
    assert (other.source, other.module, other.parameter) == (None, None, None)


def test_a_message_is_in_flight_while_it_is_waited_for_a_collective_for_as_long_as_its_span() -> None:
    clock = Clock(monotonic_ns=lambda: 0, unix_ns=lambda: 0)
    sent, reduced, unwaited = pending(place("isend")), pending(place("all_reduce")), pending(place("isend"))
    sent.message, unwaited.message = (replace(each.message, op="send") for each in (sent, unwaited))
    region = Region(0, 0, {})
    region.collectives = [sent, reduced, unwaited]
    region.waits = [Wait(40, 50, 0), Wait(60, 70, 1), Wait(80, 90, None)]
    spans = [RawSpan("gloo:any", 0, 100, 1) for _ in region.collectives]
    assert flights(region, spans, clock) == [Span(0, 40, 50), Span(1, 0, 100), Span(2, 0, 100)]
