"""Notes where a rank is: each collective as it is issued and finished, in well under 1 us.

The training thread keeps what it notes as Python values. From them the flight file is written by the watchdog's
thread, four times a second, and by the training thread itself at most once in `WRITE_EVERY_NS`.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import torch

from shardtoll.ledger.disk import flight_layout as layout
from shardtoll.ledger.disk.store import flight_path
from shardtoll.ledger.records.errors import reason
from shardtoll.ledger.records.flight import POINT_TO_POINT, STATES, State
from shardtoll.profiler.live.cause.call import Call
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.pending import PendingCollective
from shardtoll.profiler.live.flight.birth import birth
from shardtoll.profiler.live.flight.image import Image, group_piece
from shardtoll.profiler.live.flight.kinds import GroupSlot, Kind, is_plain

WRITE_EVERY_NS: Final = 10_000_000
"""The training thread writes no more often, so that it spends about 0.1 % of its time on it."""
MOST_WRITTEN: Final = 16
"""If it has issued more calls since the last write, it leaves them to the watchdog: no call may be left out
between two that are written, for readers compare what ranks issued one after the other."""
_MOST_WORKS: Final = 8192
_ENDING_S: Final = 2.0
_Tensor: Final = torch.Tensor

Note: TypeAlias = list[Any]
"""One call: number, when issued, when finished (0 not yet), place, kind, step, slot of its group."""
_NUMBER, _ISSUED, _FINISHED, _PLACE, _KIND, _STEP, _GROUP = range(7)


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
    """What one rank is in. After `end`, and in a forked child, it is kept in memory only."""

    def __init__(self, groups: Groups, rank: int, *, waits_block: bool = True) -> None:
        """Make one that writes nowhere until `open`.

        `waits_block`: whether a Work's wait returns only when the collective is done, as on the CPU.
        """
        self.rank = rank
        self.lost: str | None = None
        """Why the file could not be written any longer; None if it can."""
        self._groups = groups
        # On an accelerator the wait ends before the collective does.
        self._waits_block = waits_block
        self._next = count(1).__next__
        self._nowhere: Final = GroupSlot(layout.GROUPS, 0)
        """The group of a call that is not known."""
        self._notes: deque[Note] = deque(maxlen=layout.RING)
        self._keep = self._notes.append
        self._shown: list[tuple[int, int]] = [(0, 0)] * layout.RING
        """Number and end of the call that each place of the image's ring has."""
        self._written = 0
        """Number of the last call there."""
        self._current: Note = [0, 0, 0, 0, None, -1, self._nowhere]
        """The call issued last."""
        self._calling: Note | None = None
        self._waiting: Note | None = None
        """The call that the training thread is in, and the one whose Work it waits for."""
        self._waiting_ns = 0
        self._moved_ns = self._beat_ns = self._stood_since_ns = self._raised = 0
        self._state: State = "open"
        self._step = -1
        self._slots: dict[str, GroupSlot] = {}
        self._works: dict[int, Note] = {}
        """id of a Work, or address of a functional collective's result -> its call."""
        self._batches: dict[int, list[Note]] = {}
        """Number of a batch's last call -> the others."""
        self._stacks = 0
        self._bases: dict[str, int | None] = {}
        """Group -> its own count when the audit opened; one made later has none."""
        self._pieces: deque[tuple[int, bytes]] = deque(maxlen=layout.RING)
        """Groups and stacks that are to be written: where, and what."""
        self._image: Image | None = None
        self._due_ns = 0
        self._writing = threading.Lock()

    def open(
        self, folder: Path, world_size: int, run_id: str, *, hang_after_s: float | None, beat_s: float | None
    ) -> None:
        """Make the file; the folder must be there. Raises OSError if it cannot be written."""
        head = {
            "rank": self.rank,
            "world_size": world_size,
            "run_id": run_id,
            **birth(),
            "hang_after_s": hang_after_s,
            "beat_s": beat_s,
            "waits_block": self._waits_block,
        }
        self._bases = self._groups.sequence_numbers()
        self._beat_ns = self._moved_ns = time.monotonic_ns()
        self._image = Image(flight_path(folder, self.rank), json.dumps(head).encode())
        self.write()

    # -- what the training thread notes --------------------------------------------------------------

    def begin(self, step: int | None, now_ns: int) -> None:
        """Note that a step begins, or with None the time between steps."""
        self._step = -1 if step is None else step
        self._moved_ns = now_ns
        if len(self._works) > _MOST_WORKS:
            # Of Works that nobody waited for.
            self._works.clear()
        self._write_soon(now_ns)

    def issue(self, pending: PendingCollective, now_ns: int, *, blocks: bool = True) -> Note:
        """Note a collective about to be issued; returns the note.

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
        note = [self._next(), now_ns, 0, place, kind, self._step, group]
        self._keep(note)
        if blocks:
            self._current = self._calling = note
        if now_ns >= self._due_ns:
            self._write_soon(now_ns)
        return note

    def returned(self, note: Note, result: Any) -> None:
        """Note that the training thread's call of one collective has returned what it will wait for."""
        self._calling = None
        self._works[id(result) if type(result) is not _Tensor else _key(result)] = note

    def returned_calls(self, note: Note | None, result: Any, calls: Noted, now_ns: int) -> None:
        """Note that the call of these collectives, the last of them `note`, has returned."""
        self._calling = None
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
        others = self._before(note, len(calls) - 1)
        if call.blocking:
            for each in (*others, note):
                _finish(each, now_ns)
            return
        self.hands(result, note)
        if others:
            self._batches[note[_NUMBER]] = others

    def returned_operator(
        self,
        note: Note | None,
        result: Any,
        calls: Sequence[tuple[PendingCollective, Call]],
        now_ns: int,
    ) -> None:
        """Note that an operator has returned; as `returned_calls`."""
        self.returned_calls(
            note, result, [(pending, _Said(self._groups, call)) for pending, call in calls], now_ns
        )

    def _before(self, note: Note, most: int) -> list[Note]:
        """Return the other calls of a batch that a call is the last of."""
        number, first = note[_NUMBER], note[_NUMBER] - most
        return [each for each in tuple(self._notes) if first <= each[_NUMBER] < number] if most else []

    def hands(self, result: Any, note: Note | None = None) -> None:
        """Note that a call, the last one if not another is named, is waited for by this Work or result."""
        key = id(result) if type(result) is not _Tensor else _key(result)
        self._works[key] = self._current if note is None else note

    def raised(self, note: Note | None) -> None:
        """Note that a call, or the wait for it, raised an exception."""
        self._calling = None
        self._raised = 0 if note is None else max(note[_NUMBER], 0)

    def waits(self, key: int, now_ns: int) -> None:
        """Note that the training thread begins to wait for the Work of that id, or result at that address."""
        self._waiting = self._works.pop(key, None) or [-layout.UNKNOWN_CALL, 0, 0, 0, None, -1, self._nowhere]
        self._waiting_ns = now_ns

    def waited(self, now_ns: int) -> None:
        """Note that the wait is over."""
        note, self._waiting = self._waiting, None
        if note is not None and self._waits_block:
            note[_FINISHED] = now_ns
            note[_GROUP].finished = note[_PLACE]
            if self._batches:
                for each in self._batches.pop(note[_NUMBER], ()):
                    each[_FINISHED] = now_ns

    def wait_raised(self) -> None:
        """Note that the wait raised an exception."""
        note, self._waiting = self._waiting, None
        self.raised(note)

    # -- what a kind of call says ----------------------------------------------------------------------

    def _learn(self, pending: PendingCollective) -> Kind:
        message, place = pending.message, pending.place
        place.kind = kind = Kind(message, place, self._slot(message.group))
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
        slot = self._slots[name] = GroupSlot(len(self._slots), self._bases.get(name) or 0)
        self._pieces += group_piece(slot.index, name, ranks, text)
        return slot

    # -- what the watchdog notes -----------------------------------------------------------------------

    def moved(self) -> tuple[object, ...]:
        """Return what changes whenever the training thread issues, finishes or begins something."""
        calls = id(self._calling), id(self._waiting), self._current[_NUMBER]
        return (*calls, self._waiting_ns, self._moved_ns, self._raised)

    def is_blocked(self) -> bool:
        """Whether the training thread is in a collective's call, or in the wait for one."""
        return self._calling is not None or self._waiting is not None

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
            self._pieces.append((layout.STACKS_AT + self._stacks % 2 * layout.STACK_BYTES, data))

    # -- writing ---------------------------------------------------------------------------------------

    def _write_soon(self, now_ns: int) -> None:
        """Write the calls since the last time, unless the watchdog writes just now; not again for a while."""
        self._due_ns = now_ns + WRITE_EVERY_NS
        if self._image is not None and self._writing.acquire(blocking=False):
            try:
                notes = self._notes
                fresh = notes[-1][_NUMBER] - self._written if notes else 0
                if fresh <= MOST_WRITTEN:
                    # The last one of those written before has ended meanwhile.
                    self._write([notes[-back] for back in range(min(fresh + 1, len(notes)), 0, -1)])
            finally:
                self._writing.release()

    def write(self, *, repair: bool = False) -> None:
        """Bring the file up to date; `repair`: also one that was cut short or removed."""
        with self._writing:
            self._write(None, repair=repair)

    def _write(self, notes: list[Note] | None, *, repair: bool = False) -> None:
        image = self._image
        if image is None:
            return
        try:
            # Taken before the calls: one that is done by then is none to be in.
            waiting, calling = self._waiting, self._calling
            while self._pieces:
                image.slot(*self._pieces.popleft())
            changed = self._show(image, list(self._notes) if notes is None else notes)
            layout.WORDS.pack_into(image.data, layout.WORDS_AT, *self._words(waiting, calling))
            if notes is None:
                for slot in tuple(self._slots.values()):
                    image.group_places(slot.index, slot.finished, max(slot.issued, slot.counted))
            if repair:
                image.repair()
            image.write(ring=changed)
        except OSError as error:
            self.lost = reason(error)
            self._image = None
            image.close()

    def _words(self, waiting: Note | None, calling: Note | None) -> tuple[int, ...]:
        blocked = 0
        if waiting is not None:
            blocked = 0 if waiting[_FINISHED] else -waiting[_NUMBER]
        elif calling is not None:
            blocked = 0 if calling[_FINISHED] else calling[_NUMBER]
        since, moved, state = self._waiting_ns, self._moved_ns, STATES.index(self._state)
        return (
            self._beat_ns, self._step, blocked, since, state, moved, self._stood_since_ns, self._raised
        )  # fmt: skip

    def _show(self, image: Image, notes: Sequence[Note]) -> bool:
        """Place calls in the image's ring that are not yet there so; returns whether there were any."""
        shown, data, changed = self._shown, image.data, False
        for number, issued, finished, place, kind, step, _ in notes:
            index = number % layout.RING
            if shown[index] != (number, finished):
                shown[index] = number, finished
                at = layout.RING_AT + index * layout.ENTRY.size
                code = image.code(kind, number)
                layout.ENTRY.pack_into(data, at, number, issued, finished, place, code, step, number)
                changed = True
        if notes:
            self._written = max(self._written, notes[-1][_NUMBER])
        return changed

    # -- ending ----------------------------------------------------------------------------------------

    def end(self, state: State, says: Any = None) -> None:
        """Note how the audit ended, and let go of the file; nothing is written any more."""
        if self._image is None:
            return
        if says is not None:
            self.stands_at(says)
        self._state, self._beat_ns = state, time.monotonic_ns()
        # The watchdog may be held by a file server; its descriptor then stays open, lest it write elsewhere.
        if self._writing.acquire(timeout=_ENDING_S):
            try:
                self._write(None)
                image, self._image = self._image, None
                if image is not None:
                    image.close()
            finally:
                self._writing.release()
        self._forget()

    def let_go(self) -> None:
        """Write nothing any more, in a forked child: only the child's own descriptor is closed."""
        image, self._image = self._image, None
        # The parent's watchdog may have held it.
        self._writing = threading.Lock()
        if image is not None:
            image.close()
        self._forget()

    def _forget(self) -> None:
        self._image = None
        self._works.clear()
        self._batches.clear()
        self._notes.clear()


def _finish(note: Note, now_ns: int) -> None:
    """Note that a call that blocked is done."""
    note[_FINISHED] = now_ns
    if note[_KIND].channel is None:
        note[_GROUP].finished = max(note[_GROUP].finished, note[_PLACE])


def _key(result: torch.Tensor) -> int:
    """Return what tells a functional collective's result from others."""
    return result.data_ptr() if result.layout is torch.strided else id(result)
