"""A user's own pattern with a limit of time: refused only once a real name shows that it is too slow.

Some patterns take a name's length to the power of five, and microseconds on most names all the same. How long
one takes on a name is known only by trying. A timer of this process's processor time ends the search. Signals
reach the main thread only. Other threads, as the one that `serve` reads in, try a long name piece by piece.
Each piece is a little longer than the one before, and shows how long the next takes. This method misses a
pattern that is slow without any slow piece.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Final

from shardtoll.ledger.records.errors import UsageError

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
else:
    import sre_parse as parser

NAME_S: Final = 1.0
"""Processor time for one name: plausible patterns take milliseconds on the longest that are tried."""
ALL_S: Final = 30.0
"""Processor time for all names that one pattern is tried on."""
_BY_ONE: Final = 64
"""Characters up to which pieces grow by one: each may double the time, as of 30 optional parts."""
_GROWTH: Final = 1.15
_TOLD_S: Final = 0.02
"""From this on the times of two pieces predict that of the next one."""
_TICK_S: Final = 1e-6
_SHOWN: Final = 24
MOST_CHOICES: Final = 200
"""Repetitions and alternatives of a pattern: one more character may take so many times as long."""
_HINT: Final = "anchor it with ^, or leave out some of its .* and other repetitions"
_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


class _Late(BaseException):
    """The time is over. No error handler of a caller may take it for its own."""


class TimedPattern:
    """Searches as its pattern does, within limits of time."""

    def __init__(self, pattern: re.Pattern[str], where: str) -> None:
        """`where`: the table and the entry that it is of."""
        self.pattern = pattern
        self._where = where
        self._left_s = ALL_S
        self._searching = False

    def search(self, name: str) -> re.Match[str] | None:
        """Return the match in a name; raises UsageError if the pattern takes too long on it, or on all."""
        begin_s = time.thread_time()
        found = self._timed(name) if _has_timer() else self._by_pieces(name)
        self._left_s -= time.thread_time() - begin_s
        if self._left_s < 0:
            raise self._too_slow(f"{ALL_S:.0f} s for all names")
        return found

    def _timed(self, name: str) -> re.Match[str] | None:
        handler = signal.signal(signal.SIGVTALRM, self._over)
        try:
            self._searching = True
            signal.setitimer(signal.ITIMER_VIRTUAL, NAME_S)
            found = self.pattern.search(name)
            self._searching = False
        except _Late:
            raise self._slow_on(name) from None
        finally:
            self._searching = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, handler)
        return found

    def _over(self, _number: int, _frame: FrameType | None) -> None:
        # A signal that arrives as the search has ended may be handled after it.
        if self._searching:
            raise _Late

    def _by_pieces(self, name: str) -> re.Match[str] | None:
        before_s, left_s, found = 0.0, NAME_S, None
        for length in _lengths(len(name)):
            begin_s = time.thread_time()
            found = self.pattern.search(name[:length])
            took_s = time.thread_time() - begin_s
            left_s -= took_s
            grows = took_s / max(before_s, _TICK_S) if took_s > _TOLD_S else 1.0
            if took_s * max(grows, 1.0) > left_s and length < len(name):
                raise self._slow_on(name)
            before_s = took_s
        return found

    def _slow_on(self, name: str) -> UsageError:
        return self._too_slow(f"over {NAME_S:.1g} s for a name of {len(name):,} characters")

    def _too_slow(self, why: str) -> UsageError:
        text = self.pattern.pattern
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        return UsageError(f"{self._where}: pattern {shown!r} is too slow ({why})", _HINT)


def _has_timer() -> bool:
    """Return whether this thread can be given a timer that nobody else has set."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0 and signal.getsignal(signal.SIGVTALRM) is not None


def timed(pattern: re.Pattern[str], where: str) -> re.Pattern[str] | TimedPattern:
    """Return the pattern with limits of time if it has a choice, without which it is quick.

    Raises UsageError for one of so many choices that no budget holds.
    """
    choices = _choices(parser.parse(pattern.pattern))
    if choices > MOST_CHOICES:
        raise UsageError(
            f"{where}: pattern has {choices} repetitions and alternatives, and may have {MOST_CHOICES}", _HINT
        )
    return TimedPattern(pattern, where) if choices else pattern


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
