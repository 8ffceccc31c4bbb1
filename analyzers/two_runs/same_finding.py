"""Which findings of two runs are the same one: by kind and place, though lines may have moved."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final, TypeVar

from msgspec import Struct

from shardtoll.ledger import Finding, Report, Where

_SOURCE: Final = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?: \((?P<function>.*)\))?$")

_APART: Final = ("parameter", "phase", "mesh_dim", "op")
"""Parts of a place that a change elsewhere leaves as they are: if both are known they must agree."""

MOST_COMPARED: Final = 1_000
"""Different keys of a list that are compared with the other's; any more pair with equal keys only."""

_T = TypeVar("_T")


class _Line(Struct, frozen=True):
    file: str
    """Without its folder: the two runs may come from two checkouts."""
    function: str | None
    number: int


@lru_cache(maxsize=4096)
def _line(source: str | None) -> _Line | None:
    match = _SOURCE.match(source or "")
    if match is None:
        return None
    file = re.split(r"[/\\]", match["file"])[-1]
    return _Line(file, match["function"], int(match["line"]))


def place(where: Where) -> str:
    """Return a place in words that stay the same when lines move."""
    line = _line(where.source)
    source = where.source if line is None else f"{line.file} ({line.function or 'module'})"
    mesh = f"mesh dim {where.mesh_dim}" if where.mesh_dim else None
    parts = (where.parameter, where.module or None, where.op, source, mesh, where.phase)
    return " · ".join(part for part in parts if part) or "whole step"


Numbered = tuple[int, Finding]
"""A finding and its number on the bill."""


def numbered(report: Report) -> list[Numbered]:
    """Return the findings with their numbers on the bill."""
    return list(enumerate(report.findings, start=1))


def both_bills(before: Report, after: Report) -> list[tuple[Numbered | None, Numbered | None]]:
    """Return each finding of two bills once, before and after; None if a bill does not have it.

    In the order of the bill before; those that only the bill after has come last, in its order.
    """
    bills = numbered(before), numbered(after)
    pairs = paired(*([finding for _, finding in bill] for bill in bills))
    kept = [(each, bills[1][pairs[row]] if row in pairs else None) for row, each in enumerate(bills[0])]
    stayed = set(pairs.values())
    return [*kept, *((None, each) for row, each in enumerate(bills[1]) if row not in stayed)]


def likeness(finding: Finding, other: Finding) -> tuple[int, int] | None:
    """Return how much speaks for both being one finding; None if something speaks against it.

    Unknown on one side speaks for nothing. A module or a line may differ if the rest of the place identifies
    it well enough. Then the code was renamed or moved.
    """
    if finding.kind != other.kind or late_rank(finding) != late_rank(other):
        return None
    here, there = finding.where, other.where
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


def late_rank(finding: Finding) -> int | None:
    """Return the rank that a finding says is late, which is its place; None of other findings.

    Waiting for one rank and waiting for ranks that take turns have different causes.
    """
    return finding.ranks[0] if finding.kind == "straggler" and len(finding.ranks) == 1 else None


def paired(before: Sequence[Finding], after: Sequence[Finding]) -> dict[int, int]:
    """Return index in `before` -> index in `after` of the same finding; each is in one pair at most.

    The most similar pairs are made first; equally similar ones in the order of the bills.
    """
    left = dict(enumerate(before)), dict(enumerate(after))
    files = [{line.file for each in bill if (line := _line(each.where.source))} for bill in (before, after)]
    renamed = partial(_renamed, files_before=files[0], files_after=files[1])
    pairs: dict[int, int] = {}
    for key, alike in ((_place, likeness), (_amount, _if_so(_moved)), (_place, _if_so(renamed))):
        made = _pair_alike(*left, key, alike)
        pairs |= made
        for row, to in made.items():
            del left[0][row], left[1][to]
    return pairs


def _if_so(rule: Callable[[Finding, Finding], bool]) -> Callable[[Finding, Finding], bool | None]:
    """Return what tells no pair apart from another, and None for no pair."""
    return lambda finding, other: rule(finding, other) or None


def _place(finding: Finding) -> Hashable:
    return finding.kind, finding.where, late_rank(finding)


def _amount(finding: Finding) -> Hashable:
    return finding.kind, finding.where, finding.bytes, finding.count


def _renamed(finding: Finding, other: Finding, files_before: set[str], files_after: set[str]) -> bool:
    """Whether the same function of a file that was renamed: neither run names the other's file."""
    mine, theirs = _line(finding.where.source), _line(other.where.source)
    if (
        finding.kind != other.kind
        or late_rank(finding) != late_rank(other)
        or mine is None
        or theirs is None
        or mine.function != theirs.function
    ):
        return False
    if mine.file in files_after or theirs.file in files_before:
        return False
    values = [
        (getattr(finding.where, name), getattr(other.where, name)) for name in (*_APART, "module", "group")
    ]
    return all(here == there for here, there in values if here is not None and there is not None)


def _moved(finding: Finding, other: Finding) -> bool:
    """Whether the same thing happens at another module or line: as often, with as many bytes."""
    if finding.kind != other.kind or not finding.bytes or finding.where.op is None:
        return False
    values = [(getattr(finding.where, name), getattr(other.where, name)) for name in _APART]
    alike = all(mine == theirs for mine, theirs in values if mine and theirs)
    return alike and (finding.bytes, finding.count) == (other.bytes, other.count)


def _pair_alike(
    before: Mapping[int, _T],
    after: Mapping[int, _T],
    key: Callable[[_T], Hashable],
    likeness: Callable[[_T, _T], Any],
) -> dict[int, int]:
    """Return number in `before` -> number in `after`: the most similar first, then by the lists' order.

    `likeness` returns None if two are no pair. It must treat all items of one key equally.
    """
    mine, theirs = _by_key(before, key), _by_key(after, key)
    alike: dict[Any, dict[int, list[deque[int]]]] = {}
    for rows in islice(mine.values(), MOST_COMPARED):
        for others in islice(theirs.values(), MOST_COMPARED):
            value = likeness(before[rows[0]], after[others[0]])
            if value is not None:
                for row in rows:
                    alike.setdefault(value, {}).setdefault(row, []).append(others)
    pairs: dict[int, int] = {}
    for value in sorted(alike, reverse=True):
        _pair(pairs, alike[value])
    if max(len(mine), len(theirs)) > MOST_COMPARED:
        _pair(pairs, {row: [theirs[each]] for each, rows in mine.items() if each in theirs for row in rows})
    return pairs


def _by_key(entries: Mapping[int, _T], key: Callable[[_T], Hashable]) -> dict[Hashable, deque[int]]:
    numbers: dict[Hashable, deque[int]] = {}
    for number, entry in sorted(entries.items(), key=lambda each: each[0]):
        numbers.setdefault(key(entry), deque()).append(number)
    return numbers


def _pair(pairs: dict[int, int], alike: Mapping[int, list[deque[int]]]) -> None:
    """Give each row that has no partner yet the first of those that are as similar, and take that away."""
    for row in sorted(alike):
        free = [others for others in alike[row] if others] if row not in pairs else []
        if free:
            pairs[row] = min(free, key=lambda others: others[0]).popleft()
