"""Patterns that others wrote, each of which must be tried on many names in a short time."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from shardtoll.profiler.traces.collectives.pattern_cost import (
    MANY,
    MOST_CHOICES,
    MOST_RUNS,
    cost_of,
    is_anchored,
)
from shardtoll.profiler.traces.collectives.unambiguous import ENDLESS, Ways, is_one_way

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
else:
    import sre_parse as parser

_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT")


def compiled(text: str) -> re.Pattern[str]:
    """Return the pattern; re.error if it is none, or if it can take for ever.

    `.*a.*b.*c.*d` takes a name's length to the power of four, and 30 optional parts 2 to the power of 30.
    `(a+)+` takes 2 to the power of a name's length if it does not match, and so does `(a|aa)+`. `(\\w+::)*`
    does not: each character tells where in the body it stands.
    """
    pattern = re.compile(text)
    ignores_case = bool(pattern.flags & re.IGNORECASE) or bool(re.search(r"\(\?[a-z]*i", text))
    parsed = parser.parse(text)
    _look(parsed, Ways(ignores_case), 1)
    cost = cost_of(parsed)
    if cost.runs > MOST_RUNS:
        raise re.error(f"more than {MOST_RUNS} repetitions without an end one after another take too long")
    if cost.choices > MOST_CHOICES:
        raise re.error("alternatives and optional parts one after another multiply to too many ways")
    return pattern


def longest(pattern: re.Pattern[str], most: int) -> int:
    """Return how many characters of a name a compiled pattern is tried on, `most` at most."""
    parsed = parser.parse(pattern.pattern)
    return cost_of(parsed).longest(most, anchored=is_anchored(parsed))


def _look(parsed: Any, ways: Ways, times: int) -> None:
    """Raise re.error if a repetition can match one text in several ways; `times`: of those around it."""
    for operation, argument in parsed:
        inner = times
        if str(operation) in _REPEATS:
            inner = min(times * max(int(argument[1]), 1), ENDLESS)
            # An optional part repeats nothing itself.
            if inner > MANY and int(argument[1]) > 1 and not is_one_way(argument[2], ways):
                raise re.error("a repetition that matches a text in several ways can take for ever")
        for part in _parts(argument):
            _look(part, ways, inner)


def _parts(argument: Any) -> list[Any]:
    """Return the patterns that an operation holds."""
    if hasattr(argument, "data"):
        return [argument]
    each = argument if isinstance(argument, (tuple, list)) else ()
    return [part for inner in each for part in _parts(inner)]
