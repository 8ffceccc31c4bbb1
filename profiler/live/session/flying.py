"""The flight file and the watchdog of one session: opened and ended with it, whatever becomes of the rest."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from shardtoll.ledger.records.errors import reason
from shardtoll.ledger.records.flight import State
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.flight.watchdog import Watchdog, beat_of, note_counts

HANG_AFTER_S: Final = 120.0
_ERROR_MOST: Final = 300
log = logging.getLogger("shardtoll")


class Flying:
    """Keeps a rank's flight file while its audit is open."""

    def __init__(self, recorder: Recorder, hang_after_s: float | None, *, is_fake: bool = False) -> None:
        """`is_fake`: whether the backend transfers nothing, so that nothing can hang in it."""
        self._recorder = recorder
        self._is_fake = is_fake
        self._limit_s = hang_after_s
        self._watchdog: Watchdog | None = None

    def open(self, folder: Path, world_size: int, run_id: str) -> str | None:
        """Make the file; returns why there is none, None if there is."""
        watched = world_size > 1 and not self._is_fake
        beat_s = beat_of(self._limit_s) if watched else None
        try:
            self._recorder.flight.open(folder, world_size, run_id, hang_after_s=self._limit_s, beat_s=beat_s)
        except OSError as error:
            return f"shardtoll hang cannot see this rank: its flight file cannot be made ({reason(error)})"
        if watched:
            line = self._recorder.attribution.stack.user_line
            self._watchdog = Watchdog(self._recorder.flight, folder, self._limit_s, line)
        return None

    def start(self) -> None:
        """Begin to watch this thread, if the session wants that and has peers."""
        if self._watchdog is not None:
            self._watchdog.start()

    def stop(self) -> None:
        """Watch no longer; once more does no harm."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.stop()

    def end(
        self, state: State, error: BaseException | None = None, trace: TracebackType | None = None
    ) -> str | None:
        """Note how the session ended: `error` is the exception that ended it.

        Returns why the file could not be brought up to date at the end, None if it could.
        """
        self.stop()
        says = None
        if error is not None:
            says = {"error": reason(error)[:_ERROR_MOST], "line": self._line(trace), "frames": _frames(trace)}
        flight = self._recorder.flight
        try:
            note_counts(flight)
        except Exception:
            # A group that is destroyed meanwhile, or an interpreter that ends: the rest is reported without
            # the counts.
            log.debug("shardtoll: the groups' counts are unknown", exc_info=True)
        flight.end(state, says)
        if flight.lost is None:
            return None
        return f"shardtoll hang cannot see this rank: its flight file cannot be written ({flight.lost})"

    def _line(self, trace: TracebackType | None) -> str | None:
        """Return the innermost line of the user's in a traceback; None if none is theirs."""
        stack, line = self._recorder.attribution.stack, None
        while trace is not None:
            frame = trace.tb_frame
            facts = stack.known.get(id(frame.f_code)) or stack.classify(frame.f_code)
            if facts.is_user and facts.place is not None:
                line = f"{facts.place}:{trace.tb_lineno} ({frame.f_code.co_name})"
            trace = trace.tb_next
        return line


def _frames(trace: TracebackType | None) -> list[str]:
    entries = traceback.extract_tb(trace)[-12:]
    return [f"{entry.filename[-120:]}:{entry.lineno} ({entry.name[:60]})" for entry in reversed(entries)]
