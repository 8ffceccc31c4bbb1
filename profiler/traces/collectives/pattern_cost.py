"""How long a pattern can take at most: by a power of a text's length, and by choices that multiply."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import factorial
from typing import Any, Final

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
else:
    import sre_parse as parser

MOST_RUNS: Final = 3
"""Repetitions without an end one after another, as in `a.*b.*c`: each is one more power of a length."""
MOST_CHOICES: Final = 10_000
"""Ways to choose between alternatives and optional parts, multiplied, as 8 in `a?b?(c|d)`."""
MANY: Final = 3
"""A repetition of more than so many counts as one without an end."""
_STEPS: Final = 100_000_000
"""Characters that one pattern may look at in one name."""
_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one pattern, or a part of it, may take."""

    runs: int = 0
    choices: int = 1

    def then(self, after: Cost) -> Cost:
        """Return the cost of one part after another."""
        return Cost(self.runs + after.runs, min(self.choices * after.choices, MOST_CHOICES + 1))

    def longest(self, most: int, *, anchored: bool) -> int:
        """Return how much of a name may be looked at, up to `most` characters.

        `anchored`: whether it is tried at a name's beginning only.
        """
        power = self.runs + (not anchored)
        steps = _STEPS * factorial(power) // self.choices
        return most if most**power <= steps else max(int(steps ** (1 / power)), 1)


def cost_of(parsed: Any) -> Cost:
    """Return the cost of a parsed pattern, or of a part."""
    whole = Cost()
    for operation, argument in parsed:
        whole = whole.then(_cost(str(operation), argument))
    return whole


def is_anchored(parsed: Any) -> bool:
    """Whether a pattern begins with `^`: it is tried once, not at each character."""
    first = next(iter(parsed), None)
    return (
        first is not None
        and str(first[0]) == "AT"
        and str(first[1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING")
    )


def _cost(operation: str, argument: Any) -> Cost:
    if operation in _REPEATS:
        least, most = int(argument[0]), int(argument[1])
        if most > MANY:
            # A body that could match one text in several ways is refused: it adds nothing of its own.
            return Cost(int(least < most))
        body = cost_of(argument[2])
        choices = sum(body.choices**times for times in range(least, most + 1))
        return Cost(body.runs * most, min(choices, MOST_CHOICES + 1))
    if operation == "BRANCH":
        each = [cost_of(branch) for branch in argument[1]]
        return Cost(max(one.runs for one in each), min(sum(one.choices for one in each), MOST_CHOICES + 1))
    whole = Cost()
    for part in _parts(argument):
        whole = whole.then(cost_of(part))
    return whole


def _parts(argument: Any) -> list[Any]:
    """Return the patterns that an operation holds."""
    if isinstance(argument, parser.SubPattern):
        return [argument]
    each = argument if isinstance(argument, (tuple, list)) else ()
    return [part for inner in each for part in _parts(inner)]
