"""Patterns that others wrote, each of which must be tried on many names in a short time."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from shardtoll.profiler.traces.collectives.unambiguous import ENDLESS, Ways, is_one_way

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
else:
    import sre_parse as parser

_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT")
_MANY: Final = 3
"""A repetition of more, nested ones multiplied, counts as one without an end."""


def compiled(text: str) -> re.Pattern[str]:
    """Return the pattern; re.error if it is none, or if it can take for ever.

    `(a+)+` takes 2 to the power of a name's length if it does not match, and so does `(a|aa)+`. `(\\w+::)*`
    does not: each character tells where in the body it stands.
    """
    pattern = re.compile(text)
    ignores_case = bool(pattern.flags & re.IGNORECASE) or bool(re.search(r"\(\?[a-z]*i", text))
    _look(parser.parse(text), Ways(ignores_case), 1)
    return pattern


def _look(parsed: Any, ways: Ways, times: int) -> None:
    """Raise re.error if a repetition can match one text in several ways; `times`: of those around it."""
    for operation, argument in parsed:
        inner = times
        if str(operation) in _REPEATS:
            inner = min(times * max(int(argument[1]), 1), ENDLESS)
            # An optional part repeats nothing itself.
            if inner > _MANY and int(argument[1]) > 1 and not is_one_way(argument[2], ways):
                raise re.error("a repetition that matches a text in several ways can take for ever")
        for part in _parts(argument):
            _look(part, ways, inner)


def _parts(argument: Any) -> list[Any]:
    """Return the patterns that an operation holds."""
    if hasattr(argument, "data"):
        return [argument]
    each = argument if isinstance(argument, (tuple, list)) else ()
    return [part for inner in each for part in _parts(inner)]
