"""Patterns that others wrote, each of which must be tried on many names in a short time."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
else:
    import sre_parse as parser

_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT")
_GROUPS: Final = ("SUBPATTERN", "BRANCH", "ATOMIC_GROUP")
_MANY: Final = 16
"""A repetition of more counts as one without an end."""


def compiled(text: str) -> re.Pattern[str]:
    """Return the pattern; re.error if it is none, or if it can take for ever.

    `(a+)+` takes 2 to the power of a name's length where it does not match. `(a+:)+` does not: what stands
    beside the inner repetition tells where it ends.
    """
    pattern = re.compile(text)
    _look(parser.parse(text))
    return pattern


def _look(parsed: Any) -> None:
    """Raise re.error if a repetition repeats nothing but other repetitions."""
    for operation, argument in parsed:
        repeats = str(operation) in _REPEATS and int(argument[1]) > _MANY
        if repeats and any(_repeats_alone(body) for body in _bodies(argument[2])):
            raise re.error("a repetition of nothing but repetitions can take for ever")
        for part in _parts(argument):
            _look(part)


def _bodies(parsed: Any) -> list[list[Any]]:
    """Return the ways through a pattern that is one group or one choice; else the pattern itself."""
    items = list(parsed)
    if len(items) == 1 and str(items[0][0]) in _GROUPS:
        return [body for part in _parts(items[0][1]) for body in _bodies(part)]
    return [items]


def _repeats_alone(items: list[Any]) -> bool:
    kinds = [str(operation) for operation, _ in items]
    many = any(str(operation) in _REPEATS and int(argument[1]) > _MANY for operation, argument in items)
    return many and all(kind in _REPEATS for kind in kinds)


def _parts(argument: Any) -> list[Any]:
    """Return the patterns that an operation holds."""
    if hasattr(argument, "data"):
        return [argument]
    each = argument if isinstance(argument, (tuple, list)) else ()
    return [part for inner in each for part in _parts(inner)]
