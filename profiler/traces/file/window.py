"""The part of a trace that is in memory: it grows at its end, and what was taken is forgotten."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.file.event import MENDED, slow_decoder, unfinished
from shardtoll.profiler.traces.file.formats import HINT, of_bytes

WINDOW_LIMIT: Final = 32 << 20
"""The most bytes that wait for the end of one event or one value; a file that needs more is refused."""

SPACE_LIMIT: Final = 1 << 20
"""White space at the start of a file past which it counts as empty of content."""

HEAD_BYTES: Final = 64 << 10
"""So much of a file's begin is looked at to name another format."""

SPACE: Final = re.compile(rb"[ \t\r\n]*")
_FIRST_TEXT: Final = 256
"""Bytes decoded at first to find the end of a value: most are short, and a file may hold many."""


class Window:
    """Bytes that were read and not taken yet: those of `data` from `at` on."""

    def __init__(self, pieces: Iterator[bytes], where: str) -> None:
        self.data = b""
        self.at = 0
        self.head = b""
        """How the file begins; complete after `first`."""
        self.ended = False
        """Whether nothing follows."""
        self._pieces = pieces
        self._where = where

    def first(self) -> bytes:
        """Return `{` or `[`, whichever begins the file."""
        self.more()
        # White space belongs to it: the first byte of some binary formats is a line break.
        self.head = self.data[:HEAD_BYTES]
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
        if not self.head.strip():
            self.head = self.data[self.at : self.at + HEAD_BYTES]
        if first not in b"{[":
            found = of_bytes(self.head)
            raise self.refused(found.what, found.instead)
        return first

    def refused(self, what: str, instead: str = HINT) -> TraceError:
        """Return the error for a file that is given up."""
        return TraceError(f"{self._where} {what}", instead)

    def more(self, least: int = 1) -> bool:
        """Add at least that many bytes to the window, as far as there are any; False if there are none."""
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
        """Take one JSON value; None, with nothing taken, if it does not end or is none."""
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
