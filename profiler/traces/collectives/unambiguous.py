"""Whether a repeated pattern can match a text in one way only: each character tells where in it one is."""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

ENDLESS: Final = 1 << 16
_MOST_PLACES: Final = 256
"""Characters of a body; a longer one is refused."""
_ZERO_WIDTH: Final = ("AT", "ASSERT", "ASSERT_NOT")
_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_CLASSES: Final = {"DIGIT": re.compile(r"\d"), "SPACE": re.compile(r"\s"), "WORD": re.compile(r"\w")}
_LATIN: Final = frozenset(range(256))


class _Refused(Exception):
    """A body holds what is not looked into."""


@dataclass
class Ways:
    """How characters of a pattern compare."""

    ignores_case: bool


@dataclass
class _Part:
    """The first and last characters of a part of a pattern, by their places; it may match nothing."""

    may_be_empty: bool
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)


@dataclass
class _Body:
    """The places of a body, the characters of each, and which may follow which, once for each way."""

    ways: Ways
    ends: frozenset[int]
    """Ends of ranges and single characters: two sets that share any character share one of these."""
    places: list[frozenset[int]] = field(default_factory=list)
    follow: dict[int, list[int]] = field(default_factory=dict)

    def sequence(self, items: Any) -> _Part:
        whole = _Part(may_be_empty=True)
        for operation, argument in items:
            whole = self.joined(whole, self.part(str(operation), argument))
        return whole

    def joined(self, before: _Part, after: _Part) -> _Part:
        self.link(before.last, after.first)
        return _Part(
            before.may_be_empty and after.may_be_empty,
            before.first + (after.first if before.may_be_empty else []),
            after.last + (before.last if after.may_be_empty else []),
        )

    def link(self, last: list[int], first: list[int]) -> None:
        for place in last:
            self.follow[place].extend(first)
            if len(self.follow[place]) > _MOST_PLACES:
                raise _Refused

    def part(self, operation: str, argument: Any) -> _Part:
        if operation in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return self.place(self.characters(operation, argument))
        if operation in _ZERO_WIDTH:
            return _Part(may_be_empty=True)
        if operation == "SUBPATTERN":
            return self.sequence(argument[3])
        if operation == "ATOMIC_GROUP":
            return self.sequence(argument)
        if operation == "BRANCH":
            each = [self.sequence(branch) for branch in argument[1]]
            if sum(part.may_be_empty for part in each) > 1:
                # Python makes a choice of nothings of `a|a`.
                raise _Refused
            return _Part(
                any(part.may_be_empty for part in each),
                [place for part in each for place in part.first],
                [place for part in each for place in part.last],
            )
        if operation in _REPEATS:
            return self.repeated(int(argument[0]), int(argument[1]), argument[2])
        raise _Refused

    def repeated(self, least: int, most: int, items: Any) -> _Part:
        if least == most:
            whole = _Part(may_be_empty=True)
            for _ in range(most):
                # Too many places end it; what has none matches nothing, however often.
                had = len(self.places)
                whole = self.joined(whole, self.sequence(items))
                if len(self.places) == had:
                    break
            return whole
        part = self.sequence(items)
        if part.may_be_empty:
            # Nothing, taken or left out: two ways.
            raise _Refused
        if most > 1:
            self.link(part.last, part.first)
        return _Part(part.may_be_empty or least == 0, part.first, part.last)

    def place(self, characters: frozenset[int]) -> _Part:
        if len(self.places) >= _MOST_PLACES:
            raise _Refused
        self.places.append(characters)
        number = len(self.places) - 1
        self.follow[number] = []
        return _Part(may_be_empty=False, first=[number], last=[number])

    def characters(self, operation: str, argument: Any) -> frozenset[int]:
        """Return those of a place, as far as they are Latin ones or ends of ranges."""
        if operation == "ANY":
            return self.ends
        if operation == "IN":
            negated = str(argument[0][0]) == "NEGATE"
            found = {code for each in argument for code in self.ends if _holds(each, code)}
        else:
            negated, found = operation == "NOT_LITERAL", {int(argument)}
        if self.ways.ignores_case:
            found |= {ord(other) for code in found for other in _cases(code)}
        return frozenset(self.ends - found if negated else found)

    def is_one_way(self, part: _Part) -> bool:
        """Whether each character that may come next stands for one place."""
        if part.may_be_empty:
            return False
        self.link(part.last, part.first)
        return not any(self.overlap(places) for places in ([part.first, *self.follow.values()]))

    def overlap(self, places: list[int]) -> bool:
        counts = Counter(code for place in places for code in self.places[place])
        return any(count > 1 for count in counts.values())


def is_one_way(items: Any, ways: Ways) -> bool:
    """Whether a pattern, repeated, matches any text in at most one way, as far as that is seen."""
    body = _Body(ways, _LATIN | _ends(items))
    try:
        return body.is_one_way(body.sequence(items))
    except _Refused:
        return False


def _cases(code: int) -> tuple[str, ...]:
    text = chr(code)
    return tuple(other for other in (text.lower(), text.upper()) if len(other) == 1)


def _holds(each: tuple[Any, Any], code: int) -> bool:
    kind, argument = str(each[0]), each[1]
    if kind == "LITERAL":
        return bool(code == argument)
    if kind == "RANGE":
        return bool(argument[0] <= code <= argument[1])
    if kind == "CATEGORY":
        name = str(argument).replace("CATEGORY_", "").replace("UNI_", "")
        found = _CLASSES[name.replace("NOT_", "")].match(chr(code)) is not None
        return found != name.startswith("NOT_")
    return False


def _ends(value: Any) -> frozenset[int]:
    """Return all whole numbers of a parsed pattern that are characters."""
    if hasattr(value, "data"):
        value = value.data
    if isinstance(value, (tuple, list)):
        return frozenset(code for each in value for code in _ends(each))
    is_code = type(value) is int and 0 <= value <= sys.maxunicode
    return frozenset((value,)) if is_code else frozenset()
