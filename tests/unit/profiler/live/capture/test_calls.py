"""What a record accounts for in its group's own number: what its operator is known for, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.profiler.live.capture.calls import give_numbers
from shardtoll.profiler.live.cause.call import Call
from shardtoll.profiler.live.cause.pending import NOWHERE, Message, PendingCollective


def numbered(after: int | None, **call: Any) -> PendingCollective:
    pending = PendingCollective(Message("all_reduce", "0", 2, "float32", 4, 4, "SUM"), NOWHERE, 0, seq=7)
    give_numbers([(pending, Call("all_reduce", None, 4, "float32", (), **call))], after)
    return pending


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
