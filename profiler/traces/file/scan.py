"""From pieces of bytes to chunks of events, whatever the layout, in bounded memory.

A chunk is cut where `} , {` stands. Such characters may be inside a text or a nested list. The cut is only
believed if everything before it decodes as a whole list of events, which proves it. Chunks that do not decode
take the slow road: event after event with the standard library's decoder. It also finds its way past damage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from decimal import InvalidOperation
from typing import Any, Final

import msgspec
from msgspec import Struct

from shardtoll.profiler.traces.file import window as window_module
from shardtoll.profiler.traces.file.event import (
    MENDED,
    ExactEvent,
    decode_exact,
    decode_fast,
    forgive,
    slow_decoder,
)
from shardtoll.profiler.traces.file.slow import mend, take
from shardtoll.profiler.traces.file.window import SPACE, Window

EVENTS: Final = "traceEvents"
_CANDIDATES: Final = 32
_MOST_KEYS: Final = 100_000
"""Values other than the events; a trace has some dozen."""
_MOST_NAMES: Final = 64
"""Top-level names kept to name another format."""
_DAMAGE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_BETWEEN: Final = re.compile(rb"[ \t\r\n,]*")
_END: Final = re.compile(rb"\}\s*\](?=\s*(?:,\s*\"|\}|\Z))")
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')


class Chunk(Struct):
    """Events that follow each other in the file."""

    events: list[Any]
    """`Event` or `ExactEvent`; a slow chunk has the latter only."""
    exact: Callable[[], list[Any]]
    """The same events with times that keep every digit."""


class Scan:
    """One pass over one trace. `metadata`, `bad` and `cut` are complete once `chunks` has ended."""

    def __init__(self, pieces: Iterator[bytes], where: str, wanted: Container[str] = ()) -> None:
        self.metadata: dict[str, Any] = {}
        """Top-level values of the names in `wanted`."""
        self.names: list[str] = []
        """The first top-level names."""
        self.bad = 0
        """Events that could not be read."""
        self.found = False
        """Whether there was a list of events."""
        self.cut: str | None = None
        """Place at which the file breaks off; None if it ends as it should."""
        self._wanted = wanted
        self._window = Window(pieces, where)

    @property
    def head(self) -> bytes:
        """How the file begins, decompressed."""
        return self._window.head

    def chunks(self) -> Iterator[Chunk]:
        """Yield all events. Raises TraceError if the file is no trace."""
        first = self._window.first()
        self._window.at += 1
        keys = 0
        if first == b"[":
            yield from self._array()
            return
        while True:
            token = self._window.token(_BETWEEN)
            if token == b"}":
                return
            keys += 1
            if keys > _MOST_KEYS:
                raise self._window.refused(f"is no usable trace: it holds more than {_MOST_KEYS} values")
            key = self._window.value() if token == b'"' else None
            if not isinstance(key, str) or self._window.token(SPACE) != b":":
                if not self._sought():
                    return
                key = EVENTS
            else:
                self._window.at += 1
            if len(self.names) < _MOST_NAMES:
                self.names.append(key)
            if self._window.token(SPACE) == b"[" and key == EVENTS:
                self._window.at += 1
                yield from self._array()
                continue
            value = self._window.value()
            if key in self._wanted:
                self.metadata[key] = value

    def _sought(self) -> bool:
        """After damage outside the events, go to their list; False, with `cut` set, if none is ahead."""
        self.cut = self.cut or "breaks off outside the events"
        while not self.found:
            match = _EVENTS.search(self._window.data, self._window.at)
            if match:
                self._window.at = match.end()
                self.cut = None
                self.bad += 1
                return True
            self._window.at = max(self._window.at, len(self._window.data) - 64)
            if not self._window.more():
                break
        return False

    def _array(self) -> Iterator[Chunk]:
        """Yield the events of the list whose bracket was just taken."""
        self.found = True
        while True:
            token = self._window.token(_BETWEEN)
            if token == b"]":
                self._window.at += 1
                return
            if not token:
                self.cut = "breaks off between two events"
                return
            chunk, closed = self._fast()
            if chunk is None:
                if not self._window.ended and self._boundary(len(self._window.data)) is None:
                    self._window.more(len(self._window.data) - self._window.at)
                    continue
                chunk, closed = self._slow()
            if chunk.events:
                yield chunk
            # Freed before the next one is decoded, its memory is used again while the caches hold it.
            del chunk
            if closed or self.cut:
                return

    def _boundary(self, before: int) -> tuple[int, int] | None:
        """Return (end of an event, start of the next) for the last `} , {` ahead of `before`."""
        data, least = self._window.data, self._window.at
        for _ in range(_CANDIDATES):
            start = data.rfind(b"{", least + 1, before)
            if start < 0:
                return None
            end = _back(data, start)
            if data[end - 1 : end] == b",":
                end = _back(data, end - 1)
                if data[end - 1 : end] == b"}" and end > least:
                    return end, start
            before = start
        return None

    def _fast(self) -> tuple[Chunk | None, bool]:
        """Decode as much of the window as can be proven to be whole events: (chunk, list has ended)."""
        boundary = self._boundary(len(self._window.data))
        if boundary is not None and not self._window.ended:
            chunk = self._try(boundary[0])
            if chunk is not None:
                self._window.at = boundary[1]
                return chunk, False
        if boundary is not None or self._window.ended:
            for tried, match in enumerate(_END.finditer(self._window.data, self._window.at)):
                chunk = self._try(match.start() + 1)
                if chunk is not None:
                    self._window.at = match.end()
                    return chunk, True
                if tried >= 3:
                    break
        return None, False

    def _try(self, end: int) -> Chunk | None:
        listed = b"".join((b"[", memoryview(self._window.data)[self._window.at : end], b"]"))
        try:
            return Chunk(decode_fast(listed), lambda: _exactly(listed))
        except _DAMAGE:
            pass
        mended = listed.decode("utf-8", "replace").encode()
        if mended == listed:
            return None
        try:
            return Chunk(decode_fast(mended), lambda: _exactly(mended))
        except _DAMAGE:
            return None

    def _slow(self) -> tuple[Chunk, bool]:
        """Take event after event from the window, past damage: (chunk, list has ended)."""
        window = self._window
        text = window.data[window.at :].decode(*MENDED)
        taken = take(text, ended=window.ended, patience=window_module.WINDOW_LIMIT // 2)
        self.bad += taken.bad
        if taken.place:
            window.at += len(text[: taken.place].encode(*MENDED))
        if taken.cut or (not taken.place and not window.more(len(window.data) - window.at)):
            self.cut = "breaks off in an event"
        events = taken.events
        return Chunk(events, lambda: events), taken.closed


def _exactly(listed: bytes) -> list[ExactEvent]:
    """Decode once more what was decoded fast, with every digit of its times."""
    try:
        return decode_exact(listed)
    except (*_DAMAGE, InvalidOperation):
        values = slow_decoder.decode(listed.decode(*MENDED))
        return [mend(event) for event in map(forgive, values) if event is not None]


def _back(data: bytes, place: int) -> int:
    """Return the end of what stands before `place`, white space left out."""
    while place > 0 and data[place - 1] in b" \t\r\n":
        place -= 1
    return place
