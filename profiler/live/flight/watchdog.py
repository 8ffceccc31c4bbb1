"""A thread that writes a rank's flight file, and all Python stacks once the rank stands still too long.

A beat takes some tens of microseconds. If the training thread has issued and finished nothing since the last
beat, the watchdog also notes where it stands. It notes the groups' own counts too, which cover collectives
that C++ issues unseen. The watchdog needs the interpreter's lock for that and for the stacks, and no other
lock that a step waits for.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
import torch.distributed as dist

from shardtoll.ledger.disk.run_files import recorder_path, stacks_path
from shardtoll.profiler.live.cause.groups import live_groups
from shardtoll.profiler.live.flight.background import Background
from shardtoll.profiler.live.flight.flight import Flight

LONGEST_BEAT_S: Final = 0.25
"""How far the flight file of a rank that is killed may be behind."""
_LOOK_NS: Final = 1_000_000_000
"""Time between two looks at where the training thread stands."""
_BEATS: Final = 4
"""At least so many beats before a rank counts as hung."""
_SHORTEST_BEAT_S: Final = 0.05
_FRAMES: Final = 12
_RECORDER_MOST_BYTES: Final = 64_000_000
log = logging.getLogger("shardtoll")


def beat_of(hang_after_s: float | None) -> float:
    """Return the seconds from one heartbeat to the next."""
    if hang_after_s is None:
        return LONGEST_BEAT_S
    return min(max(hang_after_s / _BEATS, _SHORTEST_BEAT_S), LONGEST_BEAT_S)


class Watchdog(Background):
    """Watches the thread that it is made on; `start` and `stop` it once."""

    def __init__(
        self,
        flight: Flight,
        folder: Path,
        hang_after_s: float | None,
        user_line: Callable[[FrameType], str | None],
    ) -> None:
        """`hang_after_s` None: no stacks are written. `user_line` returns the nearest line of the user's."""
        super().__init__("watchdog")
        self._flight = flight
        self._folder = folder
        self._limit_s = hang_after_s
        self._user_line = user_line
        self._watched = threading.get_ident()
        self._dumped = False

    def _run(self) -> None:
        beat_s, last, looked_ns = beat_of(self._limit_s), None, 0
        moved_ns = time.monotonic_ns()
        while not self._end.wait(beat_s):
            try:
                now_ns = time.monotonic_ns()
                seen = self._flight.moved()
                moves = seen != last
                if moves:
                    last, moved_ns, looked_ns, self._dumped = seen, now_ns, 0, False
                self._flight.beat(now_ns, 0 if moves else moved_ns)
                if not moves and now_ns - looked_ns >= min(_LOOK_NS, beat_s * _BEATS * 1e9):
                    looked_ns = now_ns
                    self._look()
                if self._limit_s is not None and now_ns - moved_ns >= self._limit_s * 1e9:
                    self._stands(now_ns - moved_ns)
            except Exception as error:
                # A group that is destroyed meanwhile, or a full disk: the file goes on without what failed.
                log.debug("shardtoll: the watchdog could not look", exc_info=error)
            try:
                self._flight.write(repair=True)
            except Exception as error:
                log.debug("shardtoll: the watchdog ended", exc_info=error)
                return

    def _look(self) -> None:
        """Note where the training thread stands, and what groups have counted."""
        frame = sys._current_frames().get(self._watched)
        if frame is not None:
            self._flight.stands_at({"line": self._user_line(frame), "frames": frames_of(frame)})
            del frame
        note_counts(self._flight)

    def _stands(self, stood_ns: int) -> None:
        if not self._dumped and not self._end.is_set():
            self._dumped = True
            self._dump(stood_ns / 1e9)

    def _dump(self, stood_s: float) -> None:
        path = stacks_path(self._folder, self._flight.rank)
        blocked = self._flight.is_blocked()
        doing = "in a collective" if blocked else "and has issued no collective"
        with path.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}: rank {self._flight.rank} has stood still for ")
            file.write(f"{stood_s:.1f} s {doing}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        if blocked:
            log.warning(
                "shardtoll: rank %d has been in one collective for %.0f s; stacks are in %s; "
                "run: shardtoll hang %s",
                self._flight.rank,
                stood_s,
                path,
                self._folder,
            )
        dump = _recorded()
        if dump and len(dump) <= _RECORDER_MOST_BYTES:
            recorder_path(self._folder, self._flight.rank).write_bytes(dump)


def note_counts(flight: Flight) -> None:
    """Note what the process's groups have counted, which covers what C++ issues unseen."""
    for group in live_groups():
        try:
            count = int(group._get_sequence_number_for_group())
        except (RuntimeError, AttributeError):
            continue
        flight.counted(str(group.group_name), tuple(dist.get_process_group_ranks(group)), count)


def frames_of(frame: FrameType | None) -> list[str]:
    """Return the innermost frames as `file.py:line (function)`, the innermost first."""
    frames: list[str] = []
    while frame is not None and len(frames) < _FRAMES:
        code = frame.f_code
        frames.append(f"{code.co_filename[-120:]}:{frame.f_lineno} ({code.co_name[:60]})")
        frame = frame.f_back
    return frames


def _recorded() -> bytes | None:
    """Return what torch's own flight recorder holds; None if it records nothing."""
    module: Any = getattr(torch._C, "_distributed_c10d", None)
    dump = getattr(module, "_dump_nccl_trace", None)
    if dump is None and os.environ.get("TORCH_FR_BUFFER_SIZE", "0") != "0":
        dump = getattr(module, "_dump_fr_trace", None)
    if dump is None:
        return None
    made: Any = dump()
    return made if isinstance(made, bytes) else None
