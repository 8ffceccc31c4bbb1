"""What calls from one place say, and what the flight file counts of each group."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from shardtoll.ledger.records.flight import POINT_TO_POINT
from shardtoll.profiler.live.cause.call import Call
from shardtoll.profiler.live.cause.pending import Message, Place


class GroupSlot:
    """What is known of one group: its slot in the file, and what its own count has to be corrected by."""

    __slots__ = ("channels", "counted", "finished", "index", "issued", "skew")

    def __init__(self, index: int, skew: int) -> None:
        self.index = index
        self.skew = skew
        """What the group's count has grown by that ranks do not share: before the audit, and by sends."""
        self.issued = 0
        """Place of the collective issued last."""
        self.finished = 0
        self.counted = 0
        """Place of the one issued last by the group's own count, which C++ counts too; 0 not asked for."""
        self.channels: dict[tuple[str, int | None], int] = {}
        """Sends and receives so far, by direction and other side."""


class Kind:
    """Calls that say the same from the same place."""

    __slots__ = ("channel", "code", "group", "message", "place")

    def __init__(self, message: Message, place: Place, group: GroupSlot) -> None:
        self.message: Final = message
        self.place: Final = (place.source, place.module, place.phase)
        """Not the place itself: it holds its kind."""
        self.group: Final = group
        self.code = 0
        """Number and slot of its text in the file, when it was last written; 0 never."""
        self.channel: Final = (message.op, message.root) if message.op in POINT_TO_POINT else None

    @property
    def says(self) -> Hashable:
        """What tells its text from others."""
        return self.message, self.place


def is_plain(call: Call) -> bool:
    """Whether a call is one collective that all ranks of its group count alike, and that is waited for."""
    return not (call.blocking or call.unnumbered or call.op in POINT_TO_POINT)
