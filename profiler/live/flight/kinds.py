"""What calls from one place say, written once; and what the flight file counts of each group."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final
from weakref import WeakSet

from shardtoll.ledger.disk import flight_layout as layout
from shardtoll.ledger.records.flight import POINT_TO_POINT
from shardtoll.profiler.live.cause.call import Call
from shardtoll.profiler.live.cause.pending import Message, Place

_TEXT_MOST: Final = 120
Put = Callable[[int, bytes], None]
"""Takes where in the file bytes belong, and the bytes."""


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

    __slots__ = ("__weakref__", "channel", "code", "group", "message")

    def __init__(self, message: Message, group: GroupSlot, code: int) -> None:
        self.message: Message | None = message
        """None once its text had to make room for another."""
        self.group: Final = group
        self.code: Final = code
        """Number and slot of its text."""
        self.channel: Final = (message.op, message.root) if message.op in POINT_TO_POINT else None


class Kinds:
    """The texts that are in the file. Once all slots are taken, the oldest text makes room."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._texts: dict[Hashable, int] = {}
        self._says: list[Hashable] = [None] * layout.TEXTS
        self._users: list[WeakSet[Kind] | None] = [None] * layout.TEXTS
        self._written = 0

    def learn(self, message: Message, place: Place, group: GroupSlot) -> Kind:
        """Return what calls that say this from here have in common."""
        says = message, place.source, place.module, place.phase
        code = self._texts.get(says)
        if code is None:
            code = self._write(says, message, place)
        kind = Kind(message, group, code)
        users = self._users[code % layout.TEXTS]
        if users is None:
            users = self._users[code % layout.TEXTS] = WeakSet()
        users.add(kind)
        return kind

    def _write(self, says: Hashable, message: Message, place: Place) -> int:
        self._written += 1
        slot = self._written % layout.TEXTS
        code = self._texts[says] = self._written * layout.TEXTS + slot
        self._texts.pop(self._says[slot], None)
        self._says[slot] = says
        users, self._users[slot] = self._users[slot], None
        for kind in users or ():
            kind.message = None
        self._put(layout.TEXTS_AT + slot * layout.TEXT_BYTES, _text(message, place, self._written))
        return code


def _text(message: Message, place: Place, number: int) -> bytes:
    source, module = place.source, place.module
    says: dict[str, Any] = {
        "op": message.op,
        "group": message.group[:_TEXT_MOST],
        "bytes": message.message_bytes,
        "dtype": message.dtype,
        "reduce": message.reduce_op,
        "root": message.root,
        "gets": message.received_bytes,
        "source": None if source is None else source[-_TEXT_MOST:],
        "module": None if module is None else module[-_TEXT_MOST // 2 :],
        "phase": place.phase,
    }
    whole = layout.text_slot(says, number, layout.TEXT_BYTES)
    if whole is None:
        small = {**says, "source": (says["source"] or "")[-40:] or None, "module": None}
        whole = layout.text_slot(small, number, layout.TEXT_BYTES)
    return whole or b""


def group_text(name: str, ranks: tuple[int, ...], text: str | None) -> bytes:
    """Return the bytes of a group's slot that say what it is; without its ranks where they do not fit."""
    room = layout.GROUP_BYTES - layout.GROUP_TEXT_AT
    says = {"name": name[:_TEXT_MOST], "text": text and text[:40], "ranks": layout.runs_of(ranks)}
    return layout.text_slot(says, 1, room) or layout.text_slot({**says, "ranks": []}, 1, room) or b""


def is_plain(call: Call) -> bool:
    """Whether a call is one collective that all ranks of its group count alike, and that is waited for."""
    return not (call.blocking or call.unnumbered or call.op in POINT_TO_POINT)
