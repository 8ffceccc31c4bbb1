"""A pattern of a user's own with a budget of time: refused only once real names show that it is too slow.

Some patterns take a name's length to the power of five, and microseconds on most names all the same.
How long one takes on a name is known only by trying, and nothing ends a search that has begun. So a long name
is tried piece by piece: each piece is a little longer than the one before, and tells how long the next takes.
"""

from __future__ import annotations

import re
import sys
import time
from typing import Any, Final

from shardtoll.ledger.records.errors import UsageError

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
else:
    import sre_parse as parser

BUDGET_S: Final = 2.0
"""Processor time for all names that one pattern is tried on."""
_BY_ONE: Final = 64
"""Characters up to which pieces grow by one: each may double the time, as of 30 optional parts."""
_GROWTH: Final = 1.15
_TOLD_S: Final = 0.02
"""From this on the times of two pieces tell that of the next one."""
_TICK_S: Final = 1e-6
_SHOWN: Final = 24
MOST_CHOICES: Final = 200
"""Repetitions and alternatives of a pattern: one more character may take so many times as long."""
_HINT: Final = "anchor it with ^, or leave out some of its .* and other repetitions"
_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


class TimedPattern:
    """Searches as its pattern does, within a budget of time."""

    def __init__(self, pattern: re.Pattern[str], where: str) -> None:
        """`where`: the table and the entry that it is of."""
        self.pattern = pattern
        self._where = where
        self._left_s = BUDGET_S

    def search(self, name: str) -> re.Match[str] | None:
        """Return the match in a name; raises UsageError if the pattern takes too long on names like it."""
        before_s, found = 0.0, None
        for length in _lengths(len(name)):
            begin_s = time.thread_time()
            found = self.pattern.search(name[:length])
            took_s = time.thread_time() - begin_s
            self._left_s -= took_s
            grows = took_s / max(before_s, _TICK_S) if took_s > _TOLD_S else 1.0
            if took_s * max(grows, 1.0) > self._left_s and length < len(name):
                raise self._too_slow(length)
            before_s = took_s
        if self._left_s < 0:
            raise self._too_slow(len(name))
        return found

    def _too_slow(self, length: int) -> UsageError:
        text = self.pattern.pattern
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        return UsageError(
            f"{self._where}: pattern {shown!r} is too slow ({length} characters of a name, {BUDGET_S:.0f} s)",
            _HINT,
        )


def timed(pattern: re.Pattern[str], where: str) -> re.Pattern[str] | TimedPattern:
    """Return the pattern with a budget of time if it may be slow: one choice alone is quick.

    Raises UsageError for one of so many choices that no budget holds.
    """
    choices = _choices(parser.parse(pattern.pattern))
    if choices > MOST_CHOICES:
        raise UsageError(
            f"{where}: pattern has {choices} repetitions and alternatives, and may have {MOST_CHOICES}", _HINT
        )
    return TimedPattern(pattern, where) if choices > 1 else pattern


def _choices(parsed: Any) -> int:
    """Return how many repetitions without a fixed count and alternatives a parsed pattern has."""
    count = 0
    for operation, argument in parsed:
        name = str(operation)
        times = 1
        if name in _REPEATS:
            count += argument[0] != argument[1]
            times = max(min(int(argument[1]), 2), 1)
        count += name == "BRANCH"
        count += times * sum(_choices(part) for part in _parts(argument))
    return count


def _parts(argument: Any) -> list[Any]:
    """Return the patterns that an operation holds."""
    if hasattr(argument, "data"):
        return [argument]
    each = argument if isinstance(argument, (tuple, list)) else ()
    return [part for inner in each for part in _parts(inner)]


def _lengths(whole: int) -> list[int]:
    """Return the lengths of the pieces of a name, the whole one last."""
    made = list(range(1, min(_BY_ONE, whole)))
    length = float(_BY_ONE)
    while length < whole:
        made.append(int(length))
        length *= _GROWTH
    return [*made, whole]
