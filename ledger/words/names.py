"""How several dotted names are written: the parts that differ stand in braces.

`{wq,wk}` is as a shell expands it. Numbers in a row stand as `{0-3}`, and left out ones as `...`, which no
shell expands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from shardtoll.ledger.words.human import runs

NAMED: Final = 3
"""Names, or forms of several names, that are written; others stand as `...`."""
PARTS: Final = 6
"""Parts that stand in one brace; others stand as `...`."""
MOST_PARTS_SQUARED: Final = 2_000_000
"""Sum over the names that are looked at of the square of their parts: the cost of joining them once. Other
names stand as `...`, for files may hold any number of them. Enough for 40,000 names of seven parts."""
MOST_PARTS: Final = 24
"""Parts of a name that is joined with others; one of more is written whole."""
_ROUNDS: Final = 8
"""Times that forms are joined. Names of a model need one for each part that differs."""
_MOST_DIGITS: Final = 9
"""Digits of a part that counts as a number."""
_BRACES: Final = frozenset("{},")

_Form: TypeAlias = tuple[tuple[str, ...], ...]
"""For each part of a dotted name, what stands there: all combinations of them are names."""


def shortened(names: Iterable[str], most: int = NAMED) -> str:
    """Return dotted names in as few forms as they have, at most `most`.

    >>> shortened(["layers.3.wq.weight", "layers.3.wk.weight"])
    'layers.3.{wq,wk}.weight'
    """
    known = dict.fromkeys(names)
    split: list[tuple[str, ...]] = []
    left = MOST_PARTS_SQUARED
    for name in known:
        parts = _split(name)
        left -= len(parts) ** 2
        if left < 0:
            break
        split.append(parts)
    forms: list[_Form] = []
    for length in dict.fromkeys(map(len, split)):
        forms += _joined([tuple((part,) for part in name) for name in split if len(name) == length])
    said = [".".join(map(_part, form)) for form in forms[:most]]
    return ", ".join([*said, *(["..."] if len(forms) > most or left < 0 else [])])


def _split(name: str) -> tuple[str, ...]:
    """Return the parts of a name; one with braces of its own, or of very many parts, is joined with none."""
    whole = name.count(".") >= MOST_PARTS or not _BRACES.isdisjoint(name)
    return (name,) if whole else tuple(name.split("."))


def _joined(forms: Sequence[_Form]) -> list[_Form]:
    """Return forms of equal length with those joined that differ in one part, `_ROUNDS` times at most."""
    made = list(dict.fromkeys(forms))
    # A part alone has nothing in common with others.
    length = len(made[0]) if len(made[0]) > 1 else 0
    for _ in range(_ROUNDS):
        tries = [_joined_at(made, place) for place in reversed(range(length))]
        best = min(tries, key=len, default=made)
        if len(best) == len(made):
            break
        made = best
    return made


def _joined_at(forms: Sequence[_Form], place: int) -> list[_Form]:
    """Return the forms with those joined that differ in this part only, where the first of them stands."""
    alike: dict[_Form, list[str]] = {}
    for form in forms:
        alike.setdefault((*form[:place], (), *form[place + 1 :]), []).extend(form[place])
    return [(*rest[:place], tuple(dict.fromkeys(parts)), *rest[place + 1 :]) for rest, parts in alike.items()]


def _part(parts: tuple[str, ...]) -> str:
    if len(parts) == 1:
        return parts[0]
    if all(map(_is_number, parts)):
        shown = runs(map(int, parts)).split(", ")
    else:
        shown = list(parts)
    return f"{{{','.join([*shown[:PARTS], *(['...'] if len(shown) > PARTS else [])])}}}"


def _is_number(part: str) -> bool:
    """Whether a part is a number as it would be written: `01` would lose its spelling in a range."""
    digits = part.isascii() and part.isdecimal() and len(part) <= _MOST_DIGITS
    return digits and str(int(part)) == part
