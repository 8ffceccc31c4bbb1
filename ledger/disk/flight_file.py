"""Reads flight files as they lie: of a rank that runs, hangs, was killed or has ended."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shardtoll.ledger.disk import flight_layout as layout
from shardtoll.ledger.disk.flight_memory import memory_path
from shardtoll.ledger.disk.processes import pid_namespace, process_of
from shardtoll.ledger.disk.run_files import flight_path, stacks_path
from shardtoll.ledger.foreign.regular import read_regular
from shardtoll.ledger.records.errors import RunFolderError, first_line
from shardtoll.ledger.records.flight import STATES, FlightCall, FlightGroup, Life, RankFlight

_INT_MOST: Final = 1 << 62
_TEXT_MOST: Final = 400
_FRAMES_MOST: Final = 32
OTHER_VERSION_HINT: Final = "read it with the version of shardtoll that wrote it"


def read_flight(folder: Path, rank: int) -> RankFlight:
    """Return the content of a rank's flight file; RunFolderError if it cannot be read."""
    path = flight_path(folder, rank)
    try:
        data = read_regular(path, layout.SIZE)
        data = _memory(data) or data
        return parse_flight(data, str(path), stacks_path(folder, rank))
    except OtherVersion as error:
        raise RunFolderError(f"{path} {error}", OTHER_VERSION_HINT) from error
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path} is damaged or cut short ({first_line(error)})", "remove it to see the other ranks"
        ) from error


class OtherVersion(ValueError):
    """A flight file of another version of shardtoll, whole or not."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"was written by another version of shardtoll (flight file version {version}; this one reads "
            f"{layout.VERSION})"
        )


def _memory(data: bytes) -> bytes | None:
    """Return the memory that a file is written from; None if it is gone, or was another host's."""
    head = data[: layout.HEAD_BYTES]
    try:
        length = layout.HEAD.unpack_from(head, 0)[2]
        path = memory_path(json.loads(head[layout.HEAD.size :][:length]).get("memory"))
        newer = None if path is None else read_regular(path, layout.SIZE)
    except (OSError, ValueError, RecursionError, AttributeError, struct.error):
        return None
    same = newer is not None and len(newer) == layout.SIZE and newer[: layout.HEAD_BYTES] == head
    return newer if same else None


def parse_flight(data: bytes, path: str, stacks: Path | None = None) -> RankFlight:
    """Return the content of a flight file's bytes; ValueError if they are none, OtherVersion if others wrote
    it."""
    if data[: len(layout.MAGIC)] != layout.MAGIC or len(data) < layout.HEAD_BYTES:
        raise ValueError("it is no flight file")
    # First: the size is another version's too.
    _, version, length = layout.HEAD.unpack_from(data, 0)
    if version != layout.VERSION:
        raise OtherVersion(version)
    if len(data) != layout.SIZE:
        raise ValueError(f"{len(data):,} bytes where {layout.SIZE:,} were written")
    if length > layout.HEAD_BYTES - layout.HEAD.size:
        raise ValueError("its head is longer than its place")
    try:
        head = json.loads(data[layout.HEAD.size : layout.HEAD.size + length])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its head is no JSON: {first_line(error)}") from error
    if not isinstance(head, dict):
        raise ValueError("its head is no JSON object")
    rank, epoch_ns = (_whole(head, name) for name in ("rank", "epoch_ns"))
    if rank is None or epoch_ns is None or rank < 0:
        raise ValueError("its head names no rank")
    words = memoryview(data).cast("q")
    beat_s, limit_s = (_number(head, name) for name in ("beat_s", "hang_after_s"))
    where = _newest_stack(data)
    calls = _calls(data, epoch_ns)
    blocked, since_ns = _blocked(words, calls, epoch_ns)
    raised = words[layout.RAISED] if words[layout.RAISED] > 0 else None
    moments = [words[layout.MOVED], *(_last_times(calls, epoch_ns))]
    state = words[layout.STATE]
    return RankFlight(
        rank=rank,
        world_size=_whole(head, "world_size"),
        source="flight",
        path=path,
        calls=calls,
        groups=_groups(data, words, _whole(head, "world_size")),
        state=STATES[state] if 0 <= state < len(STATES) else "unknown",
        life=life_of(head),
        host=_text(head, "host"),
        pid=_whole(head, "pid"),
        step=words[layout.STEP] if words[layout.STEP] >= 0 else None,
        blocked=blocked,
        blocked_since_ns=since_ns,
        raised=raised,
        raised_since_ns=_raised_since(words, raised, calls, epoch_ns),
        moved_ns=max(moments) + epoch_ns,
        stood_since_ns=words[layout.STOOD_SINCE] + epoch_ns if words[layout.STOOD_SINCE] > 0 else None,
        heartbeat_ns=max(words[layout.BEAT], *moments) + epoch_ns,
        beat_every_ns=None if beat_s is None else int(beat_s * 1e9),
        hang_after_ns=None if limit_s is None else int(limit_s * 1e9),
        line=_text(where, "line"),
        frames=_frames(where),
        error=_text(where, "error"),
        stacks=str(stacks) if stacks is not None and stacks.exists() else None,
        run_id=_text(head, "run_id"),
        waits_block=head.get("waits_block") is not False,
    )


def _frames(where: Mapping[str, Any]) -> tuple[str, ...]:
    frames = where.get("frames")
    listed = frames if isinstance(frames, list) else []
    return tuple(frame[:_TEXT_MOST] for frame in listed if isinstance(frame, str))[:_FRAMES_MOST]


def _newest_stack(data: bytes) -> Mapping[str, Any]:
    slots = [
        layout.read_slot(data, layout.STACKS_AT + index * layout.STACK_BYTES, layout.STACK_BYTES)
        for index in range(2)
    ]
    read = [slot for slot in slots if slot is not None and isinstance(slot[1], dict)]
    newest: Mapping[str, Any] = max(read, key=lambda slot: slot[0])[1] if read else {}
    return newest


def _calls(data: bytes, epoch_ns: int) -> tuple[FlightCall, ...]:
    """Return the calls of the ring in program order, torn and damaged entries left out."""
    texts: dict[int, Mapping[str, Any] | None] = {}
    calls = []
    for index in range(layout.RING):
        entry = layout.ENTRY.unpack_from(data, layout.RING_AT + index * layout.ENTRY.size)
        number, issued, finished, place, code, step, nth, most, again = entry
        if number <= 0 or number != again or number % layout.RING != index or code <= 0:
            continue
        if code not in texts:
            texts[code] = _said(data, code)
        said = texts[code]
        if said is None:
            continue
        calls.append(
            FlightCall(
                number=number,
                op=_text(said, "op") or "unknown",
                group=_text(said, "group") or "",
                place=place if place > 0 else None,
                message_bytes=_whole(said, "bytes"),
                dtype=_text(said, "dtype"),
                reduce_op=_text(said, "reduce"),
                root=_whole(said, "root"),
                source=_text(said, "source"),
                received_bytes=_whole(said, "gets"),
                module=_text(said, "module"),
                phase=_text(said, "phase"),
                step=step if step >= 0 else None,
                issued_ns=issued + epoch_ns,
                finished_ns=finished + epoch_ns if finished > 0 else None,
                nth_in_step=nth if step >= 0 and nth > 0 else None,
                most_in_step=most if step >= 0 and most > 0 else None,
            )
        )
    return tuple(sorted(calls, key=lambda call: call.number))


def _said(data: bytes, code: int) -> Mapping[str, Any] | None:
    """Return the content of a call's text; None if the slot was given to another text since."""
    number, slot = divmod(code, layout.TEXTS)
    text = layout.read_slot(data, layout.TEXTS_AT + slot * layout.TEXT_BYTES, layout.TEXT_BYTES)
    return text[1] if text is not None and text[0] == number and isinstance(text[1], dict) else None


def _groups(data: bytes, words: memoryview[int], world: int | None) -> tuple[FlightGroup, ...]:
    groups = []
    left = layout.RANKS_MOST
    for index in range(layout.GROUPS):
        begin = layout.GROUPS_AT + index * layout.GROUP_BYTES
        room = layout.GROUP_BYTES - layout.GROUP_TEXT_AT
        slot = layout.read_slot(data, begin + layout.GROUP_TEXT_AT, room)
        if slot is None or not isinstance(slot[1], dict):
            continue
        ranks = layout.ranks_of(slot[1].get("ranks"), left, world)
        left -= len(ranks)
        finished, issued = words[begin // 8], words[begin // 8 + 1]
        groups.append(
            FlightGroup(
                name=_text(slot[1], "name") or "",
                ranks=ranks,
                description=_text(slot[1], "text"),
                finished_place=finished if finished > 0 else None,
                issued_place=issued if issued > 0 else None,
            )
        )
    return tuple(groups)


def _blocked(
    words: memoryview[int], calls: tuple[FlightCall, ...], epoch_ns: int
) -> tuple[int | None, int | None]:
    """Return the number of the call that the training thread is in, and since when."""
    number = words[layout.BLOCKED]
    newest = calls[-1] if calls else None
    if newest is not None and newest.number > words[layout.SEEN]:
        # The words were written before it was issued.
        number = 0 if newest.finished_ns else newest.number
    elif any(call.number == abs(number) and call.finished_ns for call in calls):
        number = 0
    if number == 0:
        return None, None
    if number < 0 or number == layout.UNKNOWN_CALL:
        return (0 if number == layout.UNKNOWN_CALL else -number), words[layout.WAITING_SINCE] + epoch_ns
    issued = next((call.issued_ns for call in reversed(calls) if call.number == number), None)
    return number, issued


def _raised_since(
    words: memoryview[int], raised: int | None, calls: tuple[FlightCall, ...], epoch_ns: int
) -> int | None:
    """Return when the call that raised was issued, or the wait for it began if that came later."""
    issued = next((call.issued_ns for call in calls if call.number == raised), None)
    return None if issued is None else max(issued, words[layout.WAITING_SINCE] + epoch_ns)


def _last_times(calls: tuple[FlightCall, ...], epoch_ns: int) -> list[int]:
    times = [time for call in calls for time in (call.issued_ns, call.finished_ns) if time is not None]
    return [max(times) - epoch_ns] if times else []


def life_of(head: Mapping[str, Any]) -> Life:
    """Return whether the process that a flight file names lives; unknown if it ran elsewhere."""
    pid, boot = _whole(head, "pid"), _text(head, "boot")
    if pid is None or pid <= 0 or head.get("host") != socket.gethostname() or boot is None:
        return "unknown"
    pids = pid_namespace()
    try:
        here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
    if boot != here:
        return "dead"
    if pids is None or head.get("pids") != pids:
        return "unknown"
    process, born = process_of(pid), _whole(head, "born_ticks")
    if process is None or process.has_ended or (born is not None and born != process.started_ticks):
        return "dead"
    return "stopped" if process.state in "Tt" else "alive"


def now_ns() -> int:
    """Return the time of day in nanoseconds, as records have it."""
    return time.time_ns()


def _whole(said: Mapping[str, Any], name: str) -> int | None:
    value = said.get(name)
    return value if type(value) is int and abs(value) < _INT_MOST else None


def _number(said: Mapping[str, Any], name: str) -> float | None:
    value = said.get(name)
    return float(value) if isinstance(value, (int, float)) and 0 < value < 1e9 else None


def _text(said: Mapping[str, Any], name: str) -> str | None:
    value = said.get(name)
    return value[:_TEXT_MOST] if isinstance(value, str) else None
