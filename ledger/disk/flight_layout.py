"""Layout of a flight file: one file of fixed size per rank, written in place while the rank runs.

For each collective the training thread writes only its entry in the ring, which begins and ends with the same
number. A reader knows a torn entry by its two ends. The words are the watchdog's. Texts lie in slots with a
length and a checksum. Times are monotonic ns of the host.

Head, words, ring, groups, texts and two stack slots follow each other; all numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, Final

MAGIC: Final = b"shdtlFLT"
VERSION: Final = 3
HEAD: Final = struct.Struct("<8sII")
"""Magic, version, length of the JSON text that follows."""
HEAD_BYTES: Final = 1024

WORDS_AT: Final = HEAD_BYTES
BEAT: Final = WORDS_AT // 8
"""Index of the heartbeat's word among the file's words of eight bytes; the others follow."""
STEP: Final = BEAT + 1
"""The step that runs, -1 between steps."""
BLOCKED: Final = BEAT + 2
"""Number of the call that the training thread is in, negative while it waits for its Work; 0 in none.
`UNKNOWN_CALL` while it waits for one whose number is unknown."""
WAITING_SINCE: Final = BEAT + 3
"""When the wait began, if `BLOCKED` is negative."""
STATE: Final = BEAT + 4
"""Index into `ledger.records.flight.STATES`."""
MOVED: Final = BEAT + 5
"""When a step last began or ended."""
STOOD_SINCE: Final = BEAT + 6
"""Since when the watchdog has seen the training thread issue and finish nothing; 0 if it moves."""
RAISED: Final = BEAT + 7
"""Number of the call whose wait or issue raised an exception last; 0 none."""
SEEN: Final = BEAT + 8
"""Number of the call issued last when these words were written: they know nothing of later ones."""
UNKNOWN_CALL: Final = 1 << 62
WORDS: Final = struct.Struct("<9q")
"""These words, in this order."""

RING: Final = 512
"""Calls that are kept, the last ones."""
ENTRY: Final = struct.Struct("<9q")
"""Fields: number; when issued; when finished (0: in flight, or its end was not seen); place; number and slot
of its kind's text; step. Then: its number among its kind in the step; most of this kind in an earlier step
(0: unknown); the first number again."""
RING_AT: Final = WORDS_AT + 256

GROUPS: Final = 64
GROUP_BYTES: Final = 512
GROUPS_AT: Final = RING_AT + RING * ENTRY.size
"""Each group: place of the last finished and of the last issued collective, 0 none, then its text. They are
written when a step begins and while the rank stands still; later calls are in the ring."""
PLACES: Final = struct.Struct("<2q")
"""The two places that a group begins with."""
GROUP_TEXT_AT: Final = PLACES.size

TEXTS: Final = 512
TEXT_BYTES: Final = 384
TEXTS_AT: Final = GROUPS_AT + GROUPS * GROUP_BYTES
STACK_BYTES: Final = 4096
STACKS_AT: Final = TEXTS_AT + TEXTS * TEXT_BYTES
"""Two slots: the one written last is the one with the larger number."""
SIZE: Final = STACKS_AT + 2 * STACK_BYTES + 64

RANKS_MOST: Final = 1 << 17
"""Ranks that all groups of a file may have together: a damaged file could name any number."""

TEXT_HEAD: Final = struct.Struct("<qII")
"""Number of the writing, length, checksum."""


def text_slot(value: Any, number: int, room: int) -> bytes | None:
    """Return a slot's bytes for a JSON value; None if it does not fit into `room` bytes."""
    data = json.dumps(value, separators=(",", ":")).encode()
    if TEXT_HEAD.size + len(data) > room:
        return None
    return TEXT_HEAD.pack(number, len(data), zlib.crc32(data)) + data


def read_slot(data: bytes, offset: int, room: int) -> tuple[int, Any] | None:
    """Return number and value of the slot there; None if it is empty, torn or damaged."""
    number, length, checksum = TEXT_HEAD.unpack_from(data, offset)
    begin = offset + TEXT_HEAD.size
    if not 0 < length <= room - TEXT_HEAD.size:
        return None
    text = data[begin : begin + length]
    if zlib.crc32(text) != checksum:
        return None
    try:
        return number, json.loads(text)
    except (ValueError, RecursionError):
        return None


def runs_of(ranks: tuple[int, ...]) -> list[list[int]]:
    """Return ascending ranks as runs of first, count and distance, so that many fit into a slot."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs:
            first, count, distance = runs[-1]
            if count == 1 and rank > first:
                runs[-1] = [first, 2, rank - first]
                continue
            if rank == first + count * distance:
                runs[-1][1] += 1
                continue
        runs.append([rank, 1, 1])
    return runs


def ranks_of(runs: Any, most: int = RANKS_MOST, world: int | None = None) -> tuple[int, ...]:
    """Return the ranks that runs stand for. Empty if they are no runs, hold more than `most` ranks, or name
    ranks that a job of `world` ranks does not have."""
    most = most if world is None else min(most, world)
    ranks: list[int] = []
    for run in runs if isinstance(runs, list) else ():
        if not (isinstance(run, list) and len(run) == 3 and all(type(part) is int for part in run)):
            return ()
        first, count, distance = run
        if first < 0 or not 0 < count <= most - len(ranks) or not 0 < distance <= RANKS_MOST:
            return ()
        if world is not None and first + (count - 1) * distance >= world:
            return ()
        ranks += range(first, first + count * distance, distance)
    return tuple(ranks)
