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
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias
from weakref import WeakSet

import torch

from shardtoll.ledger.disk import flight_layout as layout
from shardtoll.ledger.disk.store import flight_path
from shardtoll.ledger.records.flight import POINT_TO_POINT, STATES, State
from shardtoll.profiler.live.cause.call import Call
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.pending import Message, PendingCollective, Place

_MOST_TEXTS: Final = 4096
_MOST_WORKS: Final = 8192
_TEXT_MOST: Final = 120
_RING: Final = layout.RING
_ENTRY_BYTES: Final = layout.ENTRY.size
_ENTRY_WORDS: Final = layout.ENTRY.size // 8
_FINISHED_WORD: Final = layout.RING_AT // 8 + 2
"""Word of the ring's first entry that says when it finished."""
_pack: Final = layout.ENTRY.pack_into
_Tensor: Final = torch.Tensor
_BLOCKED: Final = layout.BLOCKED
_WAITING: Final = layout.WAITING_SINCE


_NOWHERE: Final = bytearray(layout.SIZE)
"""What is noted after the end, and in a forked child, goes here; nobody reads it."""


class GroupSlot:
    """What is known of one group: its slot in the file, and what its own count has to be corrected by."""

    __slots__ = ("channels", "finished", "issued", "skew", "word")

    def __init__(self, word: int, skew: int) -> None:
        self.word = word
        """Index of its first word; that of a spare word where the file has no slot left."""
        self.skew = skew
        """What the group's count has grown by that ranks do not share: before the audit, and by sends."""
        self.issued = 0
        """Place of the collective issued last."""
        self.finished = 0
        self.channels: dict[tuple[str, int | None], int] = {}
        """Sends and receives so far, by direction and other side."""


def is_plain(call: Call) -> bool:
    """Whether a call is one collective that all ranks of its group count alike, and that is waited for."""
    return not (call.blocking or call.unnumbered or call.op in POINT_TO_POINT)


_UNKNOWN: Final = (-layout.UNKNOWN_CALL, GroupSlot(layout.SPARE_AT // 8, 0), 0)
"""A call that is not known: number, group and place."""


class _Kind:
    """Calls that say the same from the same place."""

    __slots__ = ("__weakref__", "channel", "code", "group", "message")

    def __init__(self, message: Message, group: GroupSlot, code: int) -> None:
        self.message: Message | None = message
        """None once its text had to make room for another."""
        self.group = group
        self.code = code
        self.channel = (message.op, message.root) if message.op in POINT_TO_POINT else None


@dataclass(frozen=True, slots=True)
class _Said:
    """An operator's call."""

    groups: Groups
    call: Call

    def count(self) -> int | None:
        return self.groups.sequence_number(self.call.group)


class Said(Protocol):
    """A call without its tensors, as far as it is noted here."""

    @property
    def call(self) -> Call:
        """The call itself."""

    @property
    def count(self) -> Callable[[], int | None]:
        """What returns the group's own count."""


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
        # On an accelerator the wait ends before the collective does.
        self._reach = _RING if waits_block else -1
        """A collective is marked as done if fewer than so many came after it."""
        offsets = [layout.RING_AT + slot % _RING * _ENTRY_BYTES for slot in range(1, _RING + 1)]
        self._next = zip(count(1), cycle(offsets), strict=False).__next__
        """Returns the next number, and where in the file it goes."""
        self._current = self._waited_for = (0, _UNKNOWN[1], 0)
        """Number, group and place of the call issued last, and of the one waited for last."""
        self._kinds: defaultdict[int, WeakSet[_Kind]] = defaultdict(WeakSet)
        """By the slot of their text."""
        self._slots: dict[str, GroupSlot] = {}
        self._texts: dict[str, int] = {}
        self._written = 0
        self._works: dict[int, tuple[int, GroupSlot, int]] = {}
        """id of a Work, or address of a functional collective's result -> number, group and place."""
        self._batches: dict[int, int] = {}
        """Number of a batch's last call -> how many it has."""
        self._stacks = 0
        self._step = -1
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
        words = self._words
        self._step = words[layout.STEP] = -1 if step is None else step
        words[layout.MOVED] = now_ns
        self._write_groups()
        if len(self._works) > _MOST_WORKS:
            # Of Works that nobody waited for.
            self._works.clear()

    def issue(self, pending: PendingCollective, now_ns: int, *, blocks: bool = True) -> int:
        """Note a collective about to be issued; returns its number.

        The `seq` of `pending` is still its group's count of before. `blocks`: the training thread issues it.
        """
        kind = pending.place.kind
        if kind is None or kind.message is not pending.message:
            kind = self._learn(pending)
        group = kind.group
        if kind.channel is None:
            seq = pending.seq
            group.issued = place = (group.issued if seq is None else seq - group.skew) + 1
        else:
            place = group.channels[kind.channel] = group.channels.get(kind.channel, 0) + 1
        number, at = self._next()
        _pack(self._map, at, number, now_ns, 0, place, kind.code, self._step, number)
        if blocks:
            self._words[_BLOCKED] = number
        self._current = number, group, place
        return number

    def returned(self, number: int, result: Any) -> None:
        """Note that the training thread's call of one collective has returned what it will wait for."""
        self._words[_BLOCKED] = 0
        current = self._current
        if current[0] == number:
            self._works[id(result) if type(result) is not _Tensor else _key(result)] = current

    def returned_calls(self, number: int, result: Any, calls: Noted, now_ns: int) -> None:
        """Note that the call of these collectives, the last of them `number`, has returned."""
        if len(calls) == 1 and is_plain(calls[0][1].call):
            self.returned(number, result)
        else:
            self._words[_BLOCKED] = 0
            self._returned(number, result, calls, now_ns)

    def _returned(self, number: int, result: Any, calls: Noted, now_ns: int) -> None:
        """Note what is not one collective whose Work will be waited for."""
        pending, said = calls[0]
        call, before, after = said.call, pending.seq, said.count()
        if before is not None and after is not None and (call.unnumbered or call.op in POINT_TO_POINT):
            # Ranks do not share what the group's count grows by here.
            shared = len(calls) if call.unnumbered else 0
            self._slot(pending.message.group).skew += after - before - shared
        if call.blocking:
            for each in range(number - len(calls) + 1, number + 1):
                self._finished(each, now_ns)
            _, group, place = self._current
            group.finished = max(group.finished, place if call.op not in POINT_TO_POINT else 0)
            return
        self.hands(result, number)
        if len(calls) > 1:
            self._batches[number] = len(calls)

    def returned_operator(
        self, number: int, result: Any, calls: Sequence[tuple[PendingCollective, Call]], now_ns: int
    ) -> None:
        """Note that an operator has returned; as `returned_calls`."""
        noted = [(pending, _Said(self._groups, call)) for pending, call in calls]
        self.returned_calls(number, result, noted, now_ns)

    def hands(self, result: Any, number: int | None = None) -> None:
        """Note that a call, the last one if not another is named, is waited for by this Work or result."""
        if number is None or self._current[0] == number:
            key = id(result) if type(result) is not _Tensor else _key(result)
            self._works[key] = self._current

    def raised(self, number: int) -> None:
        """Note that a call, or the wait for it, raised an exception."""
        self._words[_BLOCKED] = 0
        self._words[layout.RAISED] = number

    def waits(self, key: int, now_ns: int) -> None:
        """Note that the training thread begins to wait for the Work of that id, or result at that address."""
        self._waited_for = current = self._works.pop(key, _UNKNOWN)
        words = self._words
        words[_WAITING] = now_ns
        words[_BLOCKED] = -current[0]

    def waited(self, now_ns: int) -> None:
        """Note that the wait is over."""
        words = self._words
        words[_BLOCKED] = 0
        number, group, place = self._waited_for
        if self._current[0] - number < self._reach:
            words[number % _RING * _ENTRY_WORDS + _FINISHED_WORD] = now_ns
            group.finished = place
            if self._batches:
                for each in range(number - self._batches.pop(number, 1) + 1, number):
                    self._finished(each, now_ns)

    def wait_raised(self) -> None:
        """Note that the wait raised an exception."""
        self.raised(max(self._waited_for[0], 0))

    def _finished(self, number: int, now_ns: int) -> None:
        """Note that a collective is done, if it is still in the ring."""
        if self._current[0] - number < _RING:
            self._words[number % _RING * _ENTRY_WORDS + _FINISHED_WORD] = now_ns

    def _write_groups(self) -> None:
        """Write for each group what was issued and finished last: the ring may have lost it."""
        words = self._words
        for slot in tuple(self._slots.values()):
            words[slot.word], words[slot.word + 1] = slot.finished, slot.issued

    # -- what a kind of call says, once ----------------------------------------------------------------

    def _learn(self, pending: PendingCollective) -> _Kind:
        message, place = pending.message, pending.place
        code = self._code(message, place)
        place.kind = kind = _Kind(message, self._slot(message.group), code)
        # It goes when the place does.
        self._kinds[code % layout.TEXTS].add(kind)
        return kind

    def _code(self, message: Message, place: Place) -> int:
        """Return number and slot of the text that says what a call is, written now if it is new."""
        says: dict[str, Any] = {
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
        if len(self._texts) >= _MOST_TEXTS:
            self._texts.clear()
        self._written += 1
        code = self._written * layout.TEXTS + self._written % layout.TEXTS
        slot = layout.text_slot(says, self._written, layout.TEXT_BYTES)
        if slot is None:
            small = {**says, "source": (says["source"] or "")[-40:] or None, "module": None}
            slot = layout.text_slot(small, self._written, layout.TEXT_BYTES) or b""
        for kind in self._kinds.pop(code % layout.TEXTS, ()):
            kind.message = None
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
        now = words[_BLOCKED], words[_WAITING], words[layout.MOVED], words[layout.RAISED]
        return (self._current[0], *now)

    def is_blocked(self) -> bool:
        """Whether the training thread is in a collective's call, or in the wait for one."""
        return bool(self._words[_BLOCKED])

    def beat(self, now_ns: int, stood_since_ns: int) -> None:
        """Note that the process lives, and since when its training thread stands still; 0 if it moves."""
        if stood_since_ns:
            self._write_groups()
        self._words[layout.STOOD_SINCE] = stood_since_ns
        self._words[layout.BEAT] = now_ns

    def counted(self, name: str, ranks: tuple[int, ...], count: int) -> None:
        """Note how many collectives a group has issued by its own count, C++'s among them."""
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = GroupSlot(self._room(), self._bases.get(name) or 0)
            self._describe(slot, name, ranks, None)
        if count - slot.skew > slot.issued:
            self._words[slot.word + 1] = count - slot.skew

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
        self._write_groups()
        self._words[layout.STATE] = STATES.index(state)
        self._words[layout.BEAT] = time.monotonic_ns()
        self.let_go()

    def let_go(self) -> None:
        """Write into memory of this process only, from now on: in a forked child, and after the end."""
        self._map, self._words = _NOWHERE, memoryview(_NOWHERE).cast("q")
        self._works.clear()


def _key(result: torch.Tensor) -> int:
    """Return what tells a functional collective's result from others."""
    return result.data_ptr() if result.layout is torch.strided else id(result)


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
