"""What a record accounts for in its group's own number: what its operator is known for, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.profiler.live.clock import Clock
from shardtoll.profiler.live.decode import Call
from shardtoll.profiler.live.groups import Groups
from shardtoll.profiler.live.names import Names
from shardtoll.profiler.live.pending import PendingCollective, Place, Region, Wait
from shardtoll.profiler.live.recorder import Recorder
from shardtoll.profiler.live.rows import include_elsewhere


class Counting(Groups):
    """Groups whose number is what the test says."""

    number: int | None = 7

    def sequence_number(self, group: Any) -> int | None:
        return self.number


def pending(**given: Any) -> PendingCollective:
    values: dict[str, Any] = {
        "op": "all_reduce",
        "group": "0",
        "group_size": 2,
        "dtype": "float32",
        "message_bytes": 4,
        "wire_bytes": 4,
        "reduce_op": "SUM",
        "root": None,
        "place": Place("backward"),
        "issue_ns": 0,
    }
    return PendingCollective(**values | given)


def numbered(after: int | None, **call: Any) -> PendingCollective:
    groups = Counting()
    recorder = Recorder(0, Names(None), groups, Clock(), host_times=True)
    one = pending(seq=7)
    groups.number = after
    recorder._number([(one, Call("all_reduce", None, 4, "float32", (), **call))])
    return one


@pytest.mark.parametrize(
    ("after", "call", "growth", "seq"),
    [
        (8, {}, 1, 8),
        (7, {}, 0, 7),
        (None, {}, 0, None),
        # Somebody else's came between: it is not ours to account for, and which was first is unknown.
        (9, {}, 1, None),
        (11, {"counted": 4}, 4, 11),
        (12, {"counted": 4}, 4, None),
        (9, {"counted": 2, "unnumbered": True}, 2, None),
    ],
)
def test_a_record_counts_for_its_own_operator_only(
    after: int | None, call: dict[str, Any], growth: int, seq: int | None
) -> None:
    one = numbered(after, **call)
    assert (one.growth, one.seq) == (growth, seq)


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
