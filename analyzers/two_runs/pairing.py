"""Pairs the most similar of two lists; entries with equal keys are compared once, however many they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

MOST_COMPARED: Final = 1_000
"""Different keys of a list that are compared with the other's; any more pair with equal keys only."""

_T = TypeVar("_T")


def pair_alike(
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
