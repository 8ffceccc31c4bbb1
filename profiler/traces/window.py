"""The part of a trace that is in memory: it grows at its end, and what was taken is forgotten."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from shardtoll.ledger.errors import TraceError
from shardtoll.profiler.traces.event import MENDED, slow_decoder, unfinished

WINDOW_LIMIT: Final = 32 << 20
"""The most bytes that wait for the end of one event or one value; a file that needs more is refused."""

SPACE_LIMIT: Final = 1 << 20
"""White space at the start of a file past which it counts as empty of content."""

SPACE: Final = re.compile(rb"[ \t\r\n]*")
_FIRST_TEXT: Final = 256
"""Bytes decoded at first to find the end of a value: most are short, and a file may hold many."""


class Window:
    """Bytes that were read and not taken yet: those of `data` from `at` on."""

    def __init__(self, pieces: Iterator[bytes], where: str) -> None:
        self.data = b""
        self.at = 0
        self.ended = False
        """Whether nothing follows."""
        self._pieces = pieces
        self._where = where

    def first(self) -> bytes:
        """Return `{` or `[`, whichever begins the file."""
        self.more()
        if self.data.startswith(b"\xef\xbb\xbf"):
            self.at = 3
        spaces = 0
        while True:
            start = self.at
            self.at = SPACE.match(self.data, start).end()  # type: ignore[union-attr]
            spaces += self.at - start
            if spaces > SPACE_LIMIT:
                raise self.refused(f"begins with more than {SPACE_LIMIT >> 20} MiB of white space, no JSON")
            if self.at < len(self.data):
                break
            if not self.more():
                raise self.refused("is empty" if not spaces else "holds nothing but white space")
        first = self.data[self.at : self.at + 1]
        if first not in b"{[":
            raise self.refused(_what(self.data[self.at : self.at + 64]))
        return first

    def refused(self, what: str) -> TraceError:
        """Return the error for a file that is given up."""
        return TraceError(f"{self._where} {what}", "name a trace that torch.profiler exported")

    def more(self, least: int = 1) -> bool:
        """Add at least that many bytes to the window, as far as there are any; False where there are none."""
        if len(self.data) - self.at > WINDOW_LIMIT:
            raise self.refused(
                f"is no usable trace: one event or value is larger than {WINDOW_LIMIT >> 20} MiB"
            )
        parts = [self.data[self.at :]]
        while least > 0:
            piece = next(self._pieces, None)
            if piece is None:
                self.ended = True
                break
            parts.append(piece)
            least -= len(piece)
        if len(parts) > 1:
            self.data = b"".join(parts)
            self.at = 0
        return len(parts) > 1

    def token(self, skipped: re.Pattern[bytes]) -> bytes:
        """Skip what may be skipped and return the next byte, without taking it; empty at the end."""
        while True:
            self.at = skipped.match(self.data, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.data):
                return self.data[self.at : self.at + 1]
            if not self.more():
                return b""

    def value(self) -> Any:
        """Take one JSON value; None, with nothing taken, where it does not end or is none."""
        size = _FIRST_TEXT
        while True:
            everything = self.at + size >= len(self.data)
            text = self.data[self.at : self.at + size].decode(*MENDED)
            try:
                value, end = slow_decoder.raw_decode(text)
            except RecursionError:
                raise self.refused("is no usable trace: a value is nested too deeply") from None
            except json.JSONDecodeError as error:
                if not unfinished(error, text) or (everything and self.ended):
                    return None
            else:
                if end < len(text) or (everything and self.ended):
                    self.at += len(text[:end].encode(*MENDED))
                    return value
            size *= 4
            if everything:
                self.more(len(self.data) - self.at)


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
