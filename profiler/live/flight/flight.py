"""Writes a rank's flight file: each collective as it is issued and finished, in place, in well under 1 us.

The training thread writes words of a memory map and nothing else: no system call, no lock, no allocation
beyond a number. What a call says of itself is written once a kind, as text; the ring names the kind.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import get_ident
from typing import Any, Final, Protocol, TypeAlias

import torch

from shardtoll.ledger.disk import flight_layout as layout
from shardtoll.ledger.disk.store import flight_path
from shardtoll.ledger.records.flight import POINT_TO_POINT, STATES, State
from shardtoll.profiler.live.cause.call import Call
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.pending import Message, PendingCollective, Place

_MOST_KINDS: Final = 4096
_MOST_WORKS: Final = 8192
_TEXT_MOST: Final = 120
_ENTRY_WORDS: Final = layout.ENTRY.size // 8
_RING_WORD: Final = layout.RING_AT // 8
_FINISHED, _PLACE, _GROUP = 2, 3, 6
"""Words of an entry: when it finished, its place, and where its group's first word is."""
_BLOCKED, _LAST, _WAITING = layout.BLOCKED, layout.LAST, layout.WAITING_SINCE


_NOWHERE: Final = bytearray(layout.SIZE)
"""What is noted after the end, and in a forked child, goes here; nobody reads it."""


class GroupSlot:
    """What is known of one group: its slot in the file, and what its own count has to be corrected by."""

    __slots__ = ("channels", "ordinal", "skew", "word")

    def __init__(self, word: int, skew: int) -> None:
        self.word = word
        """Index of its first word; that of a scratch word where the file has no slot left."""
        self.skew = skew
        """What the group's count has grown by that ranks do not share: before the audit, and by sends."""
        self.ordinal = 0
        self.channels: dict[tuple[str, int | None], int] = {}
        """Sends and receives so far, by direction and other side."""


class _Kind:
    """Calls that say the same from the same place."""

    __slots__ = ("channel", "code", "group", "message", "place")

    def __init__(self, message: Message, place: Place, group: GroupSlot, code: int) -> None:
        self.message = message
        self.place = place
        self.group = group
        self.code = code
        self.channel = (message.op, message.root) if message.op in POINT_TO_POINT else None


@dataclass(frozen=True, slots=True)
class _Said:
    call: Call
    count: Callable[[], int | None]


class Said(Protocol):
    """A call without its tensors, as far as it is noted here."""

    @property
    def call(self) -> Call:
        """The call itself."""

    @property
    def count(self) -> Callable[[], int | None]:
        """Returns the group's own count."""


Noted: TypeAlias = Sequence[tuple[PendingCollective, Said]]


class Flight:
    """One rank's flight file. After `close`, and in a forked child, everything goes into scratch memory."""

    def __init__(self, groups: Groups, rank: int, *, waits_block: bool = True) -> None:
        """Make one that writes nowhere until `open`.

        `waits_block`: whether a Work's wait returns only when the collective is done, as on the CPU.
        """
        self.rank = rank
        self._groups = groups
        self._waits_block = waits_block
        self._thread = get_ident()
        self._numbers = count(1)
        self._kinds: dict[tuple[int, int], _Kind] = {}
        self._slots: dict[str, GroupSlot] = {}
        self._texts: dict[str, int] = {}
        self._written = 0
        self._works: dict[int, int] = {}
        """id of a Work, or address of a functional collective's result -> number of its call."""
        self._batches: dict[int, int] = {}
        """Number of a batch's last call -> how many it has."""
        self._stacks = 0
        self.step = -1
        self._bases: dict[str, int | None] = {}
        """Group -> its own count when the audit opened; one made later has none."""
        self._map: Any = _NOWHERE
        self._words: Any = memoryview(self._map).cast("q")

    def open(
        self, folder: Path, world_size: int, run_id: str, *, hang_after_s: float | None, beat_s: float | None
    ) -> None:
        """Make the file; the folder must be there. Raises OSError if it cannot be written."""
        head = {
            "rank": self.rank,
            "world_size": world_size,
            "run_id": run_id,
            "pid": os.getpid(),
            "host": socket.gethostname()[:200],
            "boot": _boot_id(),
            "pids": _pid_namespace(),
            "born_ticks": _born_ticks(),
            "epoch_ns": time.time_ns() - time.monotonic_ns(),
            "hang_after_s": hang_after_s,
            "beat_s": beat_s,
            "waits_block": self._waits_block,
        }
        text = json.dumps(head).encode()
        self._bases = self._groups.sequence_numbers()
        self._map = _mapped(flight_path(folder, self.rank))
        self._words = memoryview(self._map).cast("q")
        self._words[layout.STEP] = -1
        self._words[layout.BEAT] = self._words[layout.MOVED] = time.monotonic_ns()
        # The magic last: without it nobody reads the file.
        self._map[layout.HEAD.size : layout.HEAD.size + len(text)] = text
        layout.HEAD.pack_into(self._map, 0, layout.MAGIC, layout.VERSION, len(text))

    # -- what the training thread writes -------------------------------------------------------------

    def begin(self, step: int | None, now_ns: int) -> None:
        """Note that a step begins, or with None the time between steps."""
        self.step = self._words[layout.STEP] = -1 if step is None else step
        self._words[layout.MOVED] = now_ns

    def issue(self, pending: PendingCollective, now_ns: int) -> int:
        """Note a collective about to be issued, whose `seq` is its group's count of before; its number."""
        kind = self._kinds.get((id(pending.message), id(pending.place))) or self._learn(pending)
        number = next(self._numbers)
        group, words = kind.group, self._words
        if kind.channel is not None:
            place = group.channels[kind.channel] = group.channels.get(kind.channel, 0) + 1
        else:
            group.ordinal = place = (group.ordinal if pending.seq is None else pending.seq - group.skew) + 1
            words[group.word + 1] = place
        at = layout.RING_AT + number % layout.RING * layout.ENTRY.size
        layout.ENTRY.pack_into(
            self._map, at, number, now_ns, 0, place, kind.code, self.step, group.word, number
        )
        words[_LAST] = number
        if get_ident() == self._thread:
            words[_BLOCKED] = number
        return number

    def returned(self, number: int, result: Any, calls: Noted, now_ns: int) -> None:
        """Note that the call of these collectives, the last of them `number`, has returned."""
        if get_ident() == self._thread:
            self._words[_BLOCKED] = 0
        call = calls[0][1].call
        if call.unnumbered or call.op in POINT_TO_POINT:
            # Ranks do not share what the group's count grows by here.
            self._grew(calls)
        if call.blocking:
            for each in range(number - len(calls) + 1, number + 1):
                self.finished(each, now_ns)
        else:
            self.hands(result, number)
            if len(calls) > 1:
                self._batches[number] = len(calls)

    def returned_operator(
        self, number: int, result: Any, calls: Sequence[tuple[PendingCollective, Call]], now_ns: int
    ) -> None:
        """Note that an operator has returned; as `returned`."""
        of = self._groups.sequence_number
        self.returned(
            number,
            result,
            [(pending, _Said(call, lambda group=call.group: of(group))) for pending, call in calls],
            now_ns,
        )

    def hands(self, result: Any, number: int | None = None) -> None:
        """Note that a call, the last one if not another is named, is waited for by this Work or result."""
        works = self._works
        if len(works) > _MOST_WORKS:
            works.clear()
            self._batches.clear()
        strided = type(result) is torch.Tensor and result.layout is torch.strided
        key = result.data_ptr() if strided else id(result)
        works[key] = self._words[_LAST] if number is None else number

    def _grew(self, calls: Noted) -> None:
        pending, said = calls[0]
        before, after = pending.seq, said.count()
        if after is not None and before is not None:
            shared = len(calls) if said.call.unnumbered else 0
            self._slot(pending.message.group).skew += after - before - shared

    def raised(self, number: int) -> None:
        """Note that a call, or the wait for it, raised an exception."""
        if get_ident() == self._thread:
            self._words[_BLOCKED] = 0
        self._words[layout.RAISED] = number

    def waits(self, key: int, now_ns: int) -> int:
        """Note that a wait begins for the Work of that id, or the result at that address.

        Returns the number of its call, 0 if unknown.
        """
        number = self._works.get(key, 0)
        if get_ident() == self._thread:
            self._words[_WAITING] = now_ns
            self._words[_BLOCKED] = -number or layout.UNKNOWN_CALL
        return number

    def waited(self, key: int, now_ns: int) -> None:
        """Note that the wait is over."""
        if get_ident() == self._thread:
            self._words[_BLOCKED] = 0
        number = self._works.pop(key, 0)
        if number and self._waits_block:
            for each in range(number - self._batches.pop(number, 1) + 1, number + 1):
                self.finished(each, now_ns)

    def wait_raised(self, key: int) -> None:
        """Note that the wait raised an exception."""
        self.raised(self._works.get(key, 0))

    def finished(self, number: int, now_ns: int) -> None:
        """Note that a collective is done."""
        words = self._words
        at = _RING_WORD + number % layout.RING * _ENTRY_WORDS
        # A later call may have taken its place in the ring.
        if words[at] == number:
            words[at + _FINISHED] = now_ns
            words[words[at + _GROUP]] = words[at + _PLACE]

    # -- what a kind of call says, once ----------------------------------------------------------------

    def _learn(self, pending: PendingCollective) -> _Kind:
        message, place = pending.message, pending.place
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        kind = _Kind(message, place, self._slot(message.group), self._code(message, place))
        self._kinds[id(message), id(place)] = kind
        return kind

    def _code(self, message: Message, place: Place) -> int:
        """Return number and slot of the text that says what a call is, written now if it is new."""
        says = {
            "op": message.op,
            "group": message.group[:_TEXT_MOST],
            "bytes": message.message_bytes,
            "dtype": message.dtype,
            "reduce": message.reduce_op,
            "root": message.root,
            "gets": message.received_bytes,
            "source": None if place.source is None else place.source[-_TEXT_MOST:],
            "module": None if place.module is None else place.module[-_TEXT_MOST // 2 :],
            "phase": place.phase,
        }
        key = repr(says)
        code = self._texts.get(key)
        if code is not None and code // layout.TEXTS > self._written - layout.TEXTS:
            return code
        if len(self._texts) >= _MOST_KINDS:
            self._texts.clear()
        self._written += 1
        code = self._written * layout.TEXTS + self._written % layout.TEXTS
        slot = layout.text_slot(says, self._written, layout.TEXT_BYTES)
        if slot is None:
            small = {**says, "source": (says["source"] or "")[-40:] or None, "module": None}
            slot = layout.text_slot(small, self._written, layout.TEXT_BYTES) or b""
        at = layout.TEXTS_AT + code % layout.TEXTS * layout.TEXT_BYTES
        self._map[at : at + len(slot)] = slot
        self._texts[key] = code
        return code

    def _slot(self, name: str) -> GroupSlot:
        """Return the slot of a group, which is described in the file at its first use."""
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = GroupSlot(self._room(), self._bases.get(name) or 0)
            record = self._groups.named(name)
            ranks, text = ((), None) if record is None else (record.ranks, record.mesh_dim)
            self._describe(slot, name, ranks, text)
        return slot

    def _room(self) -> int:
        index = len(self._slots)
        at = layout.GROUPS_AT + index * layout.GROUP_BYTES if index < layout.GROUPS else layout.SPARE_AT
        return at // 8

    def _describe(self, slot: GroupSlot, name: str, ranks: tuple[int, ...], text: str | None) -> None:
        self._words[slot.word] = self._words[slot.word + 1] = -1
        if slot.word * 8 == layout.SPARE_AT:
            return
        at, room = slot.word * 8 + layout.GROUP_TEXT_AT, layout.GROUP_BYTES - layout.GROUP_TEXT_AT
        says = {"name": name[:_TEXT_MOST], "text": text and text[:40], "ranks": layout.runs_of(ranks)}
        data = layout.text_slot(says, 1, room) or layout.text_slot({**says, "ranks": []}, 1, room) or b""
        self._map[at : at + len(data)] = data

    # -- what the watchdog writes ----------------------------------------------------------------------

    def moved(self) -> tuple[int, ...]:
        """Return what changes whenever the training thread issues, finishes or begins something."""
        words = self._words
        return (
            words[_LAST], words[_BLOCKED], words[_WAITING], words[layout.MOVED], words[layout.RAISED],
        )  # fmt: skip

    def is_blocked(self) -> bool:
        """Whether the training thread is in a collective's call, or in the wait for one."""
        return bool(self._words[_BLOCKED])

    def beat(self, now_ns: int, stood_since_ns: int) -> None:
        """Note that the process lives, and since when its training thread stands still; 0 if it moves."""
        self._words[layout.STOOD_SINCE] = stood_since_ns
        self._words[layout.BEAT] = now_ns

    def counted(self, name: str, ranks: tuple[int, ...], count: int) -> None:
        """Note how many collectives a group has issued by its own count, C++'s among them."""
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = GroupSlot(self._room(), self._bases.get(name) or 0)
            self._describe(slot, name, ranks, None)
        if count > slot.skew:
            self._words[slot.word + 1] = max(self._words[slot.word + 1], count - slot.skew)

    def stands_at(self, says: Any) -> None:
        """Keep where the training thread stands: the user's line, and its innermost frames."""
        self._stacks += 1
        data = layout.text_slot(says, self._stacks, layout.STACK_BYTES)
        if data is not None:
            at = layout.STACKS_AT + self._stacks % 2 * layout.STACK_BYTES
            self._map[at : at + len(data)] = data

    # -- ending ----------------------------------------------------------------------------------------

    def end(self, state: State, says: Any = None) -> None:
        """Note how the audit ended, and let go of the file; all further notes go nowhere."""
        if says is not None:
            self.stands_at(says)
        self._words[layout.STATE] = STATES.index(state)
        self._words[layout.BEAT] = time.monotonic_ns()
        self.let_go()

    def let_go(self) -> None:
        """Write into memory of this process only, from now on: in a forked child, and after the end."""
        self._map = _NOWHERE
        self._words = memoryview(self._map).cast("q")
        self._kinds.clear()
        self._works.clear()


def _mapped(path: Path) -> mmap.mmap:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        # All of it now: a page that a full disk cannot hold would kill the job when it is written later.
        if os.write(descriptor, bytes(layout.SIZE)) < layout.SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return mmap.mmap(descriptor, layout.SIZE)
    finally:
        os.close(descriptor)


def _boot_id() -> str | None:
    """Return what tells one start of this host from another; None if the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _born_ticks() -> int | None:
    """Return when this process started, which tells it from a later one of the same number."""
    try:
        return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
