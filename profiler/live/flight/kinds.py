"""Texts for calls from one place, written once; and the flight file's counts of each group."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final
from weakref import ref

from msgspec.json import encode

from shardtoll.ledger.disk import flight_layout as layout
from shardtoll.ledger.records.flight import POINT_TO_POINT
from shardtoll.profiler.live.cause.call import Call
from shardtoll.profiler.live.cause.pending import Message, Place

_TEXT_MOST: Final = 120
_TEXT_ROOM: Final = layout.TEXT_BYTES - layout.TEXT_HEAD.size
_MANY: Final = 256
"""So many users of a text are counted before those that are gone are left out."""
_TALLIES: Final = 4 * layout.TEXTS
"""Texts whose calls are counted by step."""
Put = Callable[[int, bytes], None]
"""Takes where in the file bytes belong, and the bytes."""


class GroupSlot:
    """Facts about one group: its slot in the file, and the correction of its own count."""

    __slots__ = ("channels", "counted", "finished", "index", "issued", "skew")

    def __init__(self, index: int, skew: int) -> None:
        self.index = index
        self.skew = skew
        """The part of the group's count that ranks do not share: from before the audit, and from sends."""
        self.issued = 0
        """Place of the collective issued last."""
        self.finished = 0
        self.counted = 0
        """Place of the one issued last by the group's own count, which C++ counts too; 0 not asked for."""
        self.channels: dict[tuple[str, int | None], int] = {}
        """Sends and receives so far, by direction and other side."""


class Tally:
    """How many calls of a kind the step has had so far, and how many an earlier step had at most."""

    __slots__ = ("most", "nth", "step")

    def __init__(self) -> None:
        self.step = -1
        self.nth = 0
        self.most = 0

    def turn(self, step: int) -> None:
        """Begin to count a step's calls; those between steps, of -1, are no step's."""
        if self.step >= 0:
            self.most = max(self.most, self.nth)
        self.step, self.nth = step, 0


class Kind:
    """Calls that say the same from the same place."""

    __slots__ = ("__weakref__", "channel", "checksum", "code", "group", "message", "says", "tally", "text")

    def __init__(self, message: Message, place: Place, group: GroupSlot) -> None:
        self.tally: Tally | None = None
        """None past the cap of texts whose calls are counted."""
        self.says: Final = message
        self.message: Message | None = None
        """Its message while its text is in the file; None once that had to make room for another."""
        self.group: Final = group
        self.text: Final = _text(message, place)
        self.checksum: Final = zlib.crc32(self.text)
        self.code = 0
        """Number and slot of its text."""
        self.channel: Final = (message.op, message.root) if message.op in POINT_TO_POINT else None


class Kinds:
    """The texts that are in the file. Once all slots are taken, the oldest text makes room."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._codes: dict[bytes, int] = {}
        self._texts = [b""] * layout.TEXTS
        self._users: list[list[ref[Kind]]] = [[] for _ in range(layout.TEXTS)]
        self._written = 0
        self._tallies: dict[bytes, Tally] = {}
        """By text, also while that has no room: what was counted for a part of a step only would mislead."""

    def learn(self, message: Message, place: Place, group: GroupSlot) -> Kind:
        """Return what calls that say this from here have in common."""
        kind = Kind(message, place, group)
        kind.tally = self._tallies.get(kind.text)
        if kind.tally is None and len(self._tallies) < _TALLIES:
            kind.tally = self._tallies[kind.text] = Tally()
        self.show(kind)
        return kind

    def show(self, kind: Kind) -> None:
        """See that the kind's text is in the file, again if it had to make room."""
        code = self._codes.get(kind.text)
        if code is None:
            code = self._write(kind.text, kind.checksum)
        kind.code, kind.message = code, kind.says
        users = self._users[code % layout.TEXTS]
        if len(users) % _MANY == _MANY - 1:
            users[:] = [user for user in users if user() is not None]
        users.append(ref(kind))

    def _write(self, text: bytes, checksum: int) -> int:
        self._written += 1
        slot = self._written % layout.TEXTS
        self._codes.pop(self._texts[slot], None)
        self._texts[slot] = text
        code = self._codes[text] = self._written * layout.TEXTS + slot
        users = self._users[slot]
        for user in users:
            kind = user()
            if kind is not None:
                kind.message = None
        users.clear()
        head = layout.TEXT_HEAD.pack(self._written, len(text), checksum)
        self._put(layout.TEXTS_AT + slot * layout.TEXT_BYTES, head + text)
        return code


def _text(message: Message, place: Place) -> bytes:
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
    text = encode(says)
    if len(text) > _TEXT_ROOM:
        text = encode({**says, "source": (says["source"] or "")[-40:] or None, "module": None})
    return text if len(text) <= _TEXT_ROOM else b"{}"


def group_text(name: str, ranks: tuple[int, ...], text: str | None) -> bytes:
    """Return the bytes of a group's slot that say what it is; without its ranks if they do not fit."""
    room = layout.GROUP_BYTES - layout.GROUP_TEXT_AT
    says = {"name": name[:_TEXT_MOST], "text": text and text[:40], "ranks": layout.runs_of(ranks)}
    return layout.text_slot(says, 1, room) or layout.text_slot({**says, "ranks": []}, 1, room) or b""


def is_plain(call: Call) -> bool:
    """Whether a call is one collective that all ranks of its group count equally, and that is waited for."""
    return not (call.blocking or call.unnumbered or call.op in POINT_TO_POINT)
