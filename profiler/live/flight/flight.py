"""Notes where a rank is: each collective as it is issued and finished, in about 1 us.

The training thread writes entries of a ring in memory and nothing else: no file, no system call, no lock. The
watchdog's thread writes the flight file from there, four times a second.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import torch

from shardtoll.ledger.disk import flight_layout as layout
from shardtoll.ledger.disk.run_files import flight_path
from shardtoll.ledger.records.errors import reason
from shardtoll.ledger.records.flight import POINT_TO_POINT, STATES, State
from shardtoll.profiler.live.cause.call import Call
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.pending import PendingCollective
from shardtoll.profiler.live.flight.birth import birth
from shardtoll.profiler.live.flight.image import Image
from shardtoll.profiler.live.flight.kinds import GroupSlot, Kind, Kinds, group_text, is_plain
from shardtoll.profiler.live.flight.memory import Memory

_MOST_WORKS: Final = 8192
_ENDING_S: Final = 2.0
_RING: Final = layout.RING
_ENTRY_WORDS: Final = layout.ENTRY.size // 8
_FINISHED_WORD: Final = layout.RING_AT // 8 + 2
"""Word of the ring's first entry that says when it finished."""
_pack: Final = layout.ENTRY.pack_into
_Tensor: Final = torch.Tensor
_NOWHERE: Final = bytearray(layout.SIZE)
"""Notes before and after the audit, and in a forked child, go here; nobody reads it."""

Note: TypeAlias = tuple[int, int, int, GroupSlot]
"""One call: number, the word that says when it finished, place, slot of its group."""
_UNKNOWN: Final[Note] = (-layout.UNKNOWN_CALL, 0, 0, GroupSlot(layout.GROUPS, 0))
"""A call that is not known."""


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
        """Returns the group's own count."""


Noted: TypeAlias = Sequence[tuple[PendingCollective, Said]]


class Flight:
    """The collective that one rank is in, and its last ones. After `end`, and in a forked child, it is kept
    in memory only."""

    def __init__(self, groups: Groups, rank: int, *, waits_block: bool = True) -> None:
        """Make one that writes nowhere until `open`.

        `waits_block`: whether a Work's wait returns only when the collective is done, as on the CPU.
        """
        self.rank = rank
        self.lost: str | None = None
        """Why the file could not be written the last time; None if it could."""
        self._groups = groups
        # On an accelerator the wait ends before the collective does.
        self._waits_block = waits_block
        self._reach = _RING if waits_block else -1
        """A collective is marked as done if fewer than so many came after it."""
        offsets = [layout.RING_AT + slot % _RING * layout.ENTRY.size for slot in range(1, _RING + 1)]
        ends = [offset // 8 + 2 for offset in offsets]
        self._next = zip(count(1), cycle(offsets), cycle(ends), strict=False).__next__
        """Returns the next number, where in the file it goes, and which word says when it finished."""
        self._current = self._waited_for = _UNKNOWN
        """The call issued last, and the one waited for last."""
        self._calling = self._waiting = False
        """Whether the training thread is in the call of the one, or in the wait for the other."""
        self._waiting_ns = 0
        self._moved_ns = self._beat_ns = self._stood_since_ns = self._raised = 0
        self._state: State = "open"
        self._step = self._last_step = -1
        self._slots: dict[str, GroupSlot] = {}
        self._works: dict[int, Note] = {}
        """id of a Work, or address of a functional collective's result -> its call."""
        self._batches: dict[int, int] = {}
        """Number of a batch's last call -> how many it has."""
        self._kinds = Kinds(self._put)
        self._stacks = 0
        self._bases: dict[str, int | None] = {}
        """Group -> its own count when the audit opened; one made later has none."""
        self._data: Any = _NOWHERE
        self._words: Any = memoryview(_NOWHERE).cast("q")
        self._image: Image | None = None
        self._writing = threading.Lock()
        """Held while the file is written, for as long as its server takes: never waited for in a step."""

    def open(
        self, folder: Path, world_size: int, run_id: str, *, hang_after_s: float | None, beat_s: float | None
    ) -> None:
        """Make the file; the folder must be there. Raises OSError if it cannot be written."""
        self._bases = self._groups.sequence_numbers()
        about = birth()
        # Last: what fails before it leaves nothing in the system's shared memory.
        memory = Memory()
        head = {
            "rank": self.rank,
            "world_size": world_size,
            "run_id": run_id,
            **about,
            "hang_after_s": hang_after_s,
            "beat_s": beat_s,
            "waits_block": self._waits_block,
            "memory": memory.name,
        }
        self._beat_ns = self._moved_ns = time.monotonic_ns()
        self._image = Image(flight_path(folder, self.rank), memory, json.dumps(head).encode())
        self._data, self._words = memory.data, memoryview(memory.data).cast("q")
        self.write()

    # -- what the training thread notes --------------------------------------------------------------

    def begin(self, step: int | None, now_ns: int) -> None:
        """Note that a step begins, or with None the time between steps."""
        if step is None:
            self._step = -1
        else:
            self._step = self._last_step = step
        self._moved_ns = now_ns
        if len(self._works) > _MOST_WORKS:
            # Works that nobody waited for.
            self._works.clear()
        self._note()

    def issue(self, pending: PendingCollective, now_ns: int, *, blocks: bool = True) -> Note:
        """Note a collective about to be issued; returns the note.

        The `seq` of `pending` is still its group's count of before. `blocks`: the training thread issues it.
        """
        kind = pending.place.kind
        if kind is None or kind.message is not pending.message:
            kind = self._learn(pending)
        group = kind.group
        if kind.channel is not None:
            place = group.channels[kind.channel] = group.channels.get(kind.channel, 0) + 1
        elif (seq := pending.seq) is not None:
            group.issued = place = seq - group.skew + 1
        else:
            group.issued = place = group.issued + 1
        number, offset, end = self._next()
        step, tally = self._step, kind.tally
        if tally is None:
            # Readers take 0 as unknown.
            nth = most = 0
        else:
            if tally.step != step:
                tally.turn(step)
            tally.nth = nth = tally.nth + 1
            most = tally.most
        _pack(self._data, offset, number, now_ns, 0, place, kind.code, step, nth, most, number)
        note = number, end, place, group
        if blocks:
            self._current = note
            self._calling = True
        return note

    def returned(self, note: Note, result: Any) -> None:
        """Note that the training thread's call of one collective has returned what it will wait for."""
        self._calling = False
        self._works[id(result) if type(result) is not _Tensor else _key(result)] = note

    def returned_calls(self, note: Note | None, result: Any, calls: Noted, now_ns: int) -> None:
        """Note that the call of these collectives, the last of them `note`, has returned."""
        self._calling = False
        if note is None:
            return
        if len(calls) == 1 and is_plain(calls[0][1].call):
            self.returned(note, result)
            return
        pending, said = calls[0]
        call, before, after = said.call, pending.seq, said.count()
        if before is not None and after is not None and (call.unnumbered or call.op in POINT_TO_POINT):
            # Ranks do not share what the group's count grows by here.
            shared = len(calls) if call.unnumbered else 0
            self._slot(pending.message.group).skew += after - before - shared
        number, _, place, group = note
        if call.blocking:
            self._finished(range(number - len(calls) + 1, number + 1), now_ns)
            if call.op not in POINT_TO_POINT:
                group.finished = max(group.finished, place)
            return
        self.hands(result, note)
        if len(calls) > 1:
            self._batches[number] = len(calls)

    def returned_operator(
        self, note: Note | None, result: Any, calls: Sequence[tuple[PendingCollective, Call]], now_ns: int
    ) -> None:
        """Note that an operator has returned; as `returned_calls`."""
        noted = [(pending, _Said(self._groups, call)) for pending, call in calls]
        self.returned_calls(note, result, noted, now_ns)

    def hands(self, result: Any, note: Note | None = None) -> None:
        """Note that a call, the last one if not another is named, is waited for by this Work or result."""
        key = id(result) if type(result) is not _Tensor else _key(result)
        self._works[key] = self._current if note is None else note

    def raised(self, note: Note | None) -> None:
        """Note that a call, or the wait for it, raised an exception."""
        self._calling = False
        self._raised = 0 if note is None else max(note[0], 0)
        self._note()

    def waits(self, key: int, now_ns: int) -> None:
        """Note that the training thread begins to wait for the Work of that id, or result at that address."""
        self._waited_for = self._works.pop(key, _UNKNOWN)
        self._waiting_ns = now_ns
        self._waiting = True

    def waited(self, now_ns: int) -> None:
        """Note that the wait is over."""
        self._waiting = False
        number, end, place, group = self._waited_for
        if self._current[0] - number < self._reach:
            self._words[end] = now_ns
            group.finished = place
            if self._batches:
                first = number - self._batches.pop(number, 1) + 1
                self._finished(range(first, number), now_ns)

    def wait_raised(self) -> None:
        """Note that the wait raised an exception."""
        self._waiting = False
        self.raised(self._waited_for)

    def _finished(self, numbers: Iterable[int], now_ns: int) -> None:
        """Note that calls are done, those that are still in the ring."""
        for number in numbers:
            if self._current[0] - number < _RING:
                self._words[number % _RING * _ENTRY_WORDS + _FINISHED_WORD] = now_ns

    # -- what a kind of call says ----------------------------------------------------------------------

    def _learn(self, pending: PendingCollective) -> Kind:
        message, place = pending.message, pending.place
        learned: Kind | None = place.kind
        if (
            learned is not None
            and learned.says is message
            and self._slots.get(message.group) is learned.group
        ):
            # Its text had to make room for others, and is as it was.
            self._kinds.show(learned)
            return learned
        place.kind = kind = self._kinds.learn(message, place, self._slot(message.group))
        return kind

    def _slot(self, name: str) -> GroupSlot:
        """Return the slot of a group, which is described in the file at its first use."""
        slot = self._slots.get(name)
        if slot is None:
            record = self._groups.named(name)
            ranks, text = ((), None) if record is None else (record.ranks, record.mesh_dim)
            slot = self._new_slot(name, ranks, text)
        return slot

    def _new_slot(self, name: str, ranks: tuple[int, ...], text: str | None) -> GroupSlot:
        index = len(self._slots)
        slot = self._slots[name] = GroupSlot(index, self._bases.get(name) or 0)
        if index < layout.GROUPS:
            offset = layout.GROUPS_AT + index * layout.GROUP_BYTES + layout.GROUP_TEXT_AT
            self._put(offset, group_text(name, ranks, text))
        return slot

    def _put(self, at: int, data: bytes) -> None:
        image = self._image
        if image is not None:
            image.place(at, data)

    # -- what the watchdog notes -----------------------------------------------------------------------

    def moved(self) -> tuple[object, ...]:
        """Return what changes whenever the training thread issues, finishes or begins something."""
        now = self._current[0], self._calling, self._waiting, self._waiting_ns
        return (*now, self._moved_ns, self._raised)

    def is_blocked(self) -> bool:
        """Whether the training thread is in a collective's call, or in the wait for one."""
        return self._calling or self._waiting

    def beat(self, now_ns: int, stood_since_ns: int) -> None:
        """Note that the process lives, and since when its training thread stands still; 0 if it moves."""
        self._stood_since_ns = stood_since_ns
        self._beat_ns = now_ns

    def counted(self, name: str, ranks: tuple[int, ...], count: int) -> None:
        """Note how many collectives a group has issued by its own count, C++'s among them."""
        slot = self._slots.get(name) or self._new_slot(name, ranks, None)
        slot.counted = count - slot.skew

    def stands_at(self, says: Any) -> None:
        """Keep where the training thread stands: the user's line, and its innermost frames."""
        self._stacks += 1
        data = layout.text_slot(says, self._stacks, layout.STACK_BYTES)
        if data is not None:
            self._put(layout.STACKS_AT + self._stacks % 2 * layout.STACK_BYTES, data)

    # -- writing ---------------------------------------------------------------------------------------

    def write(self, *, repair: bool = False) -> None:
        """Bring the file up to date; `repair`: also one that was cut short or removed."""
        with self._writing:
            image = self._image
            if image is None:
                return
            self._note()
            for slot in tuple(self._slots.values()):
                image.place_group(slot.index, slot.finished, max(slot.issued, slot.counted))
            try:
                if repair:
                    image.repair()
                image.write()
            except OSError as error:
                self.lost = reason(error)
            else:
                # A disk that had no room for a moment: the file is whole again.
                self.lost = None

    def _note(self) -> None:
        """Place the words: all facts other than the calls."""
        waiting, calling, seen = self._waiting, self._calling, max(self._current[0], 0)
        blocked = -self._waited_for[0] if waiting else seen if calling else 0
        layout.WORDS.pack_into(
            self._data, layout.WORDS_AT, self._beat_ns, self._step, blocked, self._waiting_ns,
            STATES.index(self._state), self._moved_ns, self._stood_since_ns, self._raised, seen,
        )  # fmt: skip

    # -- ending ----------------------------------------------------------------------------------------

    def end(self, state: State, says: Any = None) -> None:
        """Note how the audit ended, and let go of the file; nothing is written any more."""
        if self._image is None:
            return
        if says is not None:
            self.stands_at(says)
        self._state, self._beat_ns = state, time.monotonic_ns()
        # The last step, also if the audit ended after it: who did as many as others has not ended early.
        self._step = self._last_step
        if self._writing.acquire(timeout=_ENDING_S):
            self._writing.release()
            self.write()
            self._image.close()
        else:
            # The file's server holds the watchdog: a descriptor closed now might be another file's by then.
            self._image.remove_memory()
        self._forget()

    def let_go(self) -> None:
        """Write nothing any more, in a forked child: only the child's own descriptor is closed."""
        # The parent's watchdog may have held it.
        self._writing = threading.Lock()
        if self._image is not None:
            self._image.close(forked=True)
        self._forget()

    def _forget(self) -> None:
        self._image = None
        self._data, self._words = _NOWHERE, memoryview(_NOWHERE).cast("q")
        self._works.clear()
        self._batches.clear()


def _key(result: torch.Tensor) -> int:
    """Return what distinguishes a functional collective's result from others."""
    return result.data_ptr() if result.layout is torch.strided else id(result)
