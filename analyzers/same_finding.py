"""Which findings of two runs are the same one: by kind and place, though lines may have moved."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardtoll.ledger import Finding, Where

_SOURCE: Final = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?: \((?P<function>.*)\))?$")
_APART: Final = ("parameter", "phase", "mesh_dim", "op")
"""Parts of a place that a change elsewhere leaves as they are: where both are known they must agree."""


@dataclass(frozen=True, slots=True)
class _Line:
    file: str
    """Without its folder: the two runs may come from two checkouts."""
    function: str | None
    number: int


def _line(source: str | None) -> _Line | None:
    found = _SOURCE.match(source or "")
    if found is None:
        return None
    file = re.split(r"[/\\]", found["file"])[-1]
    return _Line(file, found["function"], int(found["line"]))


def place(where: Where) -> str:
    """Return a place in words that stay the same when lines move."""
    line = _line(where.source)
    source = where.source if line is None else f"{line.file} ({line.function or 'module'})"
    mesh = f"mesh dim {where.mesh_dim}" if where.mesh_dim else None
    parts = (where.parameter, where.module or None, where.op, source, mesh, where.phase)
    return " · ".join(part for part in parts if part) or "whole step"


def likeness(one: Finding, other: Finding) -> tuple[int, int] | None:
    """Return how much speaks for the two being one finding; None where something speaks against it.

    Unknown on one side speaks for nothing. A module or a line may differ where the rest of the place is
    told well enough without it: the code was renamed or moved.
    """
    if one.kind != other.kind:
        return None
    here, there = one.where, other.where
    agreeing = 0
    for name in _APART:
        mine, theirs = getattr(here, name), getattr(there, name)
        if mine and theirs:
            if mine != theirs:
                return None
            agreeing += 1
    modules = here.module is not None and there.module is not None
    same_module = modules and here.module == there.module
    mine, theirs = _line(here.source), _line(there.source)
    lines = mine is not None and theirs is not None
    same_function = lines and (mine.file, mine.function) == (theirs.file, theirs.function)  # type: ignore[union-attr]
    parameter = bool(here.parameter) and here.parameter == there.parameter
    if modules and not same_module and not (same_function and here.op == there.op):
        return None
    if lines and not same_function and not (parameter or (same_module and here.module)):
        return None
    moved = abs(mine.number - theirs.number) if same_function and mine and theirs else 0
    return agreeing + 2 * same_module + 2 * same_function, -moved


def paired(before: Sequence[Finding], after: Sequence[Finding]) -> dict[int, int]:
    """Return index in `before` -> index in `after` of the same finding; each is in one pair at most.

    The pairs most alike are made first; in the order of the bills where several are as much alike.
    """
    candidates = []
    for at, one in enumerate(before):
        for to, other in enumerate(after):
            alike = likeness(one, other)
            if alike is not None:
                candidates.append((alike, -at, -to))
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for _, at, to in sorted(candidates, reverse=True):
        if -at not in pairs and -to not in taken:
            pairs[-at] = -to
            taken.add(-to)
    for at, one in enumerate(before):
        if at not in pairs:
            moved = next(
                (to for to, other in enumerate(after) if to not in taken and _moved(one, other)), None
            )
            if moved is not None:
                pairs[at] = moved
                taken.add(moved)
    files = [{line.file for one in bill if (line := _line(one.where.source))} for bill in (before, after)]
    for at, one in enumerate(before):
        if at not in pairs:
            renamed = next(
                (
                    to
                    for to, other in enumerate(after)
                    if to not in taken and _renamed(one, other, files[0], files[1])
                ),
                None,
            )
            if renamed is not None:
                pairs[at] = renamed
                taken.add(renamed)
    return pairs


def _renamed(one: Finding, other: Finding, before: set[str], after: set[str]) -> bool:
    """Whether the same function of a file that was renamed: neither run names the other's file."""
    mine, theirs = _line(one.where.source), _line(other.where.source)
    if one.kind != other.kind or mine is None or theirs is None or mine.function != theirs.function:
        return False
    if mine.file in after or theirs.file in before:
        return False
    known = [(getattr(one.where, name), getattr(other.where, name)) for name in (*_APART, "module", "group")]
    return all(here == there for here, there in known if here is not None and there is not None)


def _moved(one: Finding, other: Finding) -> bool:
    """Whether the same thing happens at another module or line: as often, with as many bytes."""
    if one.kind != other.kind or not one.bytes or one.where.op is None:
        return False
    known = [(getattr(one.where, name), getattr(other.where, name)) for name in _APART]
    alike = all(mine == theirs for mine, theirs in known if mine and theirs)
    return alike and (one.bytes, one.count) == (other.bytes, other.count)
