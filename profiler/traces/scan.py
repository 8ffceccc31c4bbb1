"""From pieces of bytes to chunks of events, whatever the layout, in bounded memory.

A chunk is cut where `} , {` stands. That may be inside a text or a nested list, so the cut is only
believed when everything before it decodes as a whole list of events, which proves it. Chunks that do
not decode take the slow road: event after event with the standard library's decoder, which also finds
its way past damage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from decimal import InvalidOperation
from typing import Any, Final

import msgspec

from shardtoll.ledger.errors import TraceError
from shardtoll.profiler.traces.event import (
    AnyEvent,
    ExactEvent,
    decode_exact,
    decode_fast,
    forgive,
    slow_decoder,
)

WINDOW_LIMIT: Final = 32 << 20
"""The most bytes that wait for the end of one event or one value; a file that needs more is refused."""

SPACE_LIMIT: Final = 1 << 20
"""White space at the start of a file past which it counts as empty of content."""

_FIRST_TEXT: Final = 64 << 10
_CANDIDATES: Final = 32
_DAMAGE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_BETWEEN: Final = re.compile(rb"[ \t\r\n,]*")
_BETWEEN_TEXT: Final = re.compile(r"[ \t\r\n,]*")
_END: Final = re.compile(rb"\}\s*\](?=\s*(?:,\s*\"|\}|\Z))")
EVENTS: Final = "traceEvents"
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')
_NEXT: Final = re.compile(r"(?:\}\s*)?,\s*(?=\{\s*\"(?:ph|name|cat|pid|tid|ts|dur|id|args|bp|s)\")")
_MENDED: Final = ("utf-8", "surrogateescape")


@dataclass(slots=True)
class Chunk:
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
        self.bad = 0
        """Events that could not be read."""
        self.found = False
        """Whether there was a list of events."""
        self.cut: str | None = None
        """Where the file breaks off; None where it ends as it should."""
        self._pieces = pieces
        self._where = where
        self._wanted = wanted
        self._data = b""
        self._at = 0
        self._ended = False

    def chunks(self) -> Iterator[Chunk]:
        """Yield all events. Raises TraceError where the file is no trace."""
        first = self._first()
        self._at += 1
        if first == b"[":
            yield from self._array()
            return
        while True:
            token = self._token(_BETWEEN)
            if token == b"}":
                return
            key = self._value() if token == b'"' else None
            if not isinstance(key, str) or self._token(_SPACE) != b":":
                if not self._sought():
                    return
                key = EVENTS
            else:
                self._at += 1
            if self._token(_SPACE) == b"[" and key == EVENTS:
                self._at += 1
                yield from self._array()
                continue
            value = self._value()
            if key in self._wanted:
                self.metadata[key] = value

    def _sought(self) -> bool:
        """After damage outside the events, go to their list; False, with `cut` set, where none is ahead."""
        self.cut = self.cut or "breaks off outside the events"
        while not self.found:
            match = _EVENTS.search(self._data, self._at)
            if match:
                self._at = match.end()
                self.cut = None
                self.bad += 1
                return True
            self._at = max(self._at, len(self._data) - 64)
            if not self._more():
                break
        return False

    def _first(self) -> bytes:
        """Return `{` or `[`, whichever begins the file."""
        self._more()
        if self._data.startswith(b"\xef\xbb\xbf"):
            self._at = 3
        spaces = 0
        while True:
            start = self._at
            self._at = _SPACE.match(self._data, start).end()  # type: ignore[union-attr]
            spaces += self._at - start
            if spaces > SPACE_LIMIT:
                raise self._refused(f"begins with more than {SPACE_LIMIT >> 20} MiB of white space, no JSON")
            if self._at < len(self._data):
                break
            if not self._more():
                raise self._refused("is empty" if not spaces else "holds nothing but white space")
        first = self._data[self._at : self._at + 1]
        if first not in b"{[":
            raise self._refused(_what(self._data[self._at : self._at + 64]))
        return first

    def _refused(self, what: str) -> TraceError:
        return TraceError(f"{self._where} {what}", "name a trace that torch.profiler exported")

    def _more(self, least: int = 1) -> bool:
        """Add at least that many bytes to the window, as far as there are any; False where there are none."""
        if len(self._data) - self._at > WINDOW_LIMIT:
            raise self._refused(
                f"is no usable trace: one event or value is larger than {WINDOW_LIMIT >> 20} MiB"
            )
        parts = [self._data[self._at :]]
        while least > 0:
            piece = next(self._pieces, None)
            if piece is None:
                self._ended = True
                break
            parts.append(piece)
            least -= len(piece)
        if len(parts) > 1:
            self._data = b"".join(parts)
            self._at = 0
        return len(parts) > 1

    def _token(self, skipped: re.Pattern[bytes]) -> bytes:
        """Skip what may be skipped and return the next byte, without taking it; empty at the end."""
        while True:
            self._at = skipped.match(self._data, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._data):
                return self._data[self._at : self._at + 1]
            if not self._more():
                return b""

    def _value(self) -> Any:
        """Take one JSON value; None, with nothing taken, where it does not end or is none."""
        size = _FIRST_TEXT
        while True:
            everything = self._at + size >= len(self._data)
            text = self._data[self._at : self._at + size].decode(*_MENDED)
            try:
                value, end = slow_decoder.raw_decode(text)
            except RecursionError:
                raise self._refused("is no usable trace: a value is nested too deeply") from None
            except json.JSONDecodeError as error:
                if not _unfinished(error, text) or (everything and self._ended):
                    return None
            else:
                if end < len(text) or (everything and self._ended):
                    self._at += len(text[:end].encode(*_MENDED))
                    return value
            size *= 4
            if everything:
                self._more(len(self._data) - self._at)

    def _array(self) -> Iterator[Chunk]:
        """Yield the events of the list whose bracket was just taken."""
        self.found = True
        while True:
            token = self._token(_BETWEEN)
            if token == b"]":
                self._at += 1
                return
            if not token:
                self.cut = "breaks off between two events"
                return
            chunk, closed = self._fast()
            if chunk is None:
                if not self._ended and self._boundary(len(self._data)) is None:
                    self._more(len(self._data) - self._at)
                    continue
                chunk, closed = self._slow()
            if chunk.events:
                yield chunk
            if closed or self.cut:
                return

    def _boundary(self, before: int) -> tuple[int, int] | None:
        """Return (end of an event, start of the next) for the last `} , {` ahead of `before`."""
        data, least = self._data, self._at
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
        boundary = self._boundary(len(self._data))
        if boundary is not None and not self._ended:
            chunk = self._try(boundary[0])
            if chunk is not None:
                self._at = boundary[1]
                return chunk, False
        if boundary is not None or self._ended:
            for tried, match in enumerate(_END.finditer(self._data, self._at)):
                chunk = self._try(match.start() + 1)
                if chunk is not None:
                    self._at = match.end()
                    return chunk, True
                if tried >= 3:
                    break
        return None, False

    def _try(self, end: int) -> Chunk | None:
        listed = b"".join((b"[", memoryview(self._data)[self._at : end], b"]"))
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
        text = self._data[self._at :].decode(*_MENDED)
        events: list[AnyEvent] = []
        place, closed = 0, False
        while True:
            place = _BETWEEN_TEXT.match(text, place).end()  # type: ignore[union-attr]
            if place >= len(text):
                break
            if text[place] == "]":
                place, closed = place + 1, True
                break
            try:
                found, place = slow_decoder.raw_decode(text, place)
            except (json.JSONDecodeError, RecursionError) as error:
                if _unfinished(error, text) and not self._ended and len(text) - place < WINDOW_LIMIT // 2:
                    break
                following = _NEXT.search(text, place)
                if following is None:
                    if self._ended:
                        self.cut = "breaks off in an event"
                        place = len(text)
                    break
                self.bad += 1
                place = following.end()
            else:
                event = forgive(found)
                if event is None:
                    self.bad += 1
                else:
                    events.append(_mend(event))
        if place == 0 and not closed and not self._more(len(self._data) - self._at):
            self.cut = "breaks off in an event"
        else:
            self._at += len(text[:place].encode(*_MENDED))
        return Chunk(events, lambda: events), closed


def _exactly(listed: bytes) -> list[ExactEvent]:
    """Decode once more what was decoded fast, with every digit of its times."""
    try:
        return decode_exact(listed)
    except (*_DAMAGE, InvalidOperation):
        found = slow_decoder.decode(listed.decode(*_MENDED))
        return [_mend(event) for event in map(forgive, found) if event is not None]


def _back(data: bytes, place: int) -> int:
    """Return the end of what stands before `place`, white space left out."""
    while place > 0 and data[place - 1] in b" \t\r\n":
        place -= 1
    return place


def _unfinished(error: Exception, text: str) -> bool:
    """Whether a decoder failed only because the text ends."""
    return isinstance(error, json.JSONDecodeError) and (
        error.pos >= len(text) - 8 or error.msg.startswith("Unterminated string")
    )


def _mend(event: ExactEvent) -> ExactEvent:
    """Replace bytes that were no UTF-8 in the texts of an event."""
    for name in ("name", "cat", "pid", "tid"):
        value = getattr(event, name)
        if isinstance(value, str) and not value.isascii():
            setattr(event, name, value.encode("utf-8", "replace").decode("utf-8"))
    return event


def _what(head: bytes) -> str:
    """Say what a file is that does not begin as JSON does."""
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return "is a Python pickle, which is never opened"
    if head.startswith(b"SQLite format 3"):
        return "is an SQLite database (Nsight Systems?), no JSON trace"
    if head.startswith(b"PK\x03\x04"):
        return "is a zip archive (a torch.save file?), no JSON trace"
    if not head.strip(b"\0"):
        return "is not JSON: it begins with zero bytes"
    return f"is not JSON: it begins with {head[:12]!r}"
