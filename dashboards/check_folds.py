"""Overruns that tell one excess, taken together by the source lines at which it may be mended.

One added collective is over the limit of the step, of its group and of its phase, by as much in each. It is
at a line that all of these have; which of several such lines is new a single run does not tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from shardtoll.ledger.overrun import Overrun

LINES: Final = 10
"""Lines of one excess that are marked, the costliest: GitHub shows so many of a step."""
_SITE: Final = re.compile(r"(?P<file>.{1,1000}):(?P<line>[1-9][0-9]{0,8})(?: \(.*\))?", re.DOTALL)

Site = tuple[str, str]
"""File and line."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What is said at one source line, or at none."""

    site: Site | None
    overruns: tuple[Overrun, ...]
    others: int
    """Other lines that may as well be the one to change."""


def site(source: str | None) -> Site | None:
    """Return file and line of a source as `job/train.py:7 (step)`."""
    found = None if source is None else _SITE.fullmatch(source)
    return None if found is None else (found["file"], found["line"])


def marks(overruns: Sequence[Overrun]) -> list[Mark]:
    """Return what to say at which lines, in the order of the overruns."""
    placed: dict[object, tuple[Site | None, list[Overrun], int]] = {}
    for same in _folded(overruns):
        lines: list[Site | None] = [*_lines(same)]
        for at in lines or [None]:
            # What has no line is told by itself.
            key: object = at if at is not None else ("none", len(placed))
            _, told, others = placed.setdefault(key, (at, [], len(lines) - 1))
            told += same
            placed[key] = (at, told, min(others, max(0, len(lines) - 1)))
    return [Mark(at, tuple(told), others) for at, told, others in placed.values()]


def _folded(overruns: Iterable[Overrun]) -> list[list[Overrun]]:
    """Return those together that are over a limit of one name by as much, on one rank and in one step."""
    folded: dict[object, list[Overrun]] = {}
    for at, one in enumerate(overruns):
        key: object = at
        if one.answer == "over" and one.found is not None and one.limit_name.startswith("max_"):
            key = (one.limit_name, round(one.found - one.limit, 9), one.step, one.rank)
        folded.setdefault(key, []).append(one)
    return list(folded.values())


def _lines(same: Sequence[Overrun]) -> list[Site]:
    """Return the lines that all of them have, those of implicit calls first."""
    found: list[Site] | None = None
    for one in same:
        mine = _of_calls(one)
        if not one.calls_left_out and mine:
            found = mine if found is None else [at for at in found if at in mine] or found
    if found is None:
        found = next((mine for one in same if (mine := _of_calls(one))), [])
    return found[:LINES]


def _of_calls(one: Overrun) -> list[Site]:
    calls = sorted(one.calls, key=lambda call: not call.implicit)
    sites = [at for call in calls if (at := site(call.source)) is not None]
    own = site(one.source)
    return list(dict.fromkeys(sites)) or ([] if own is None else [own])
