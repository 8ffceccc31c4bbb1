"""The slow road: event after event with the standard library's decoder, and on past damage."""

from __future__ import annotations

import json
import re
from typing import Final

from msgspec import Struct, field

from shardtoll.profiler.traces.file.event import ExactEvent, forgive, mended, slow_decoder, unfinished

_BETWEEN: Final = re.compile(r"[ \t\r\n,]*")
_NEXT: Final = re.compile(r"(?:\}\s*)?,\s*(?=\{\s*\"(?:ph|name|cat|pid|tid|ts|dur|id|args|bp|s)\")")
"""The next event begins here, most likely."""

_STRETCH: Final = 32 << 10
"""Characters between two moves of the start of a text: a decoder that fails counts its lines from there."""


class Taken(Struct):
    """Result of reading a text of events."""

    events: list[ExactEvent] = field(default_factory=list)
    place: int = 0
    """How far it was read."""
    closed: bool = False
    """Whether the list of events has ended."""
    cut: bool = False
    """Whether the text ends in an event and nothing follows."""
    bad: int = 0
    """Events that could not be read."""


def take(text: str, *, ended: bool, patience: int) -> Taken:
    """Read the events of a text that begins between two of them.

    An event that breaks off waits until more of it is there, unless the text has `ended` or the event is
    longer than `patience`.
    """
    taken, before = Taken(), 0
    while not _take(taken, text, ended, patience):
        text, before = text[taken.place :], before + taken.place
        taken.place = 0
    taken.place += before
    return taken


def _take(taken: Taken, text: str, ended: bool, patience: int) -> bool:
    """Read a stretch of events; True if nothing more can be read of the text."""
    stretch = max(_STRETCH, len(text) // 64)
    while taken.place <= stretch:
        taken.place = _BETWEEN.match(text, taken.place).end()  # type: ignore[union-attr]
        if taken.place >= len(text):
            return True
        if text[taken.place] == "]":
            taken.place, taken.closed = taken.place + 1, True
            return True
        try:
            value, taken.place = slow_decoder.raw_decode(text, taken.place)
        except (json.JSONDecodeError, RecursionError) as error:
            if unfinished(error, text) and not ended and len(text) - taken.place < patience:
                return True
            following = _NEXT.search(text, taken.place)
            if following is None:
                if ended:
                    taken.place, taken.cut = len(text), True
                return True
            taken.bad += 1
            taken.place = following.end()
        else:
            event = forgive(value)
            if event is None:
                taken.bad += 1
            else:
                taken.events.append(mend(event))
    return False


def mend(event: ExactEvent) -> ExactEvent:
    """Replace bytes that were no UTF-8 in the texts of an event."""
    for name in ("name", "cat", "pid", "tid"):
        value = getattr(event, name)
        if isinstance(value, str):
            setattr(event, name, mended(value))
    return event
