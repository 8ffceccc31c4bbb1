"""Interval arithmetic: which instants two layers share, and which collective gets each exposed nanosecond.

An interval is `(start_ns, end_ns)`, half open. All is whole numbers, and nothing is lost. `step_parts` of
`profiler.live.capture` cuts a step into its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Interval: TypeAlias = tuple[int, int]


def union(intervals: Sequence[Interval]) -> list[Interval]:
    """Return the same instants as disjoint intervals in order; empty ones are dropped."""
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def intersect(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """Return the instants in both; `a` and `b` must each be disjoint and in order."""
    common: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            common.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common


def subtract(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """Return the instants in `a` and not in `b`; both must be disjoint and in order."""
    left: list[Interval] = []
    j = 0
    for start, end in a:
        while j < len(b) and b[j][1] <= start:
            j += 1
        begin, k = start, j
        while k < len(b) and b[k][0] < end:
            if b[k][0] > begin:
                left.append((begin, b[k][0]))
            begin = max(begin, b[k][1])
            k += 1
        if begin < end:
            left.append((begin, end))
    return left


def total_ns(intervals: Sequence[Interval]) -> int:
    """Return the summed length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


@dataclass(frozen=True, slots=True)
class Span:
    """The time in which one collective was in flight; `key` is the caller's own number for it."""

    key: int
    start_ns: int
    end_ns: int


def share_exposed(exposed: Sequence[Interval], spans: Sequence[Span]) -> tuple[dict[int, int], int]:
    """Share exposed time among the collectives in flight (rule 6 of the accounting).

    An instant in which k spans are in flight is split evenly among them. The remainder goes to the earlier
    keys, so that the shares add up exactly. Returns the ns of each key, and the ns of exposed instants
    without a span in flight.
    """
    edges: list[tuple[int, int, int]] = []
    for start, end in union(exposed):
        edges += [(start, 1, -1), (end, 0, -1)]
    for span in spans:
        if span.end_ns > span.start_ns:
            edges += [(span.start_ns, 1, span.key), (span.end_ns, 0, span.key)]
    edges.sort()
    shares: dict[int, int] = {}
    in_flight: set[int] = set()
    ownerless_ns = 0
    is_exposed = False
    last_ns = edges[0][0] if edges else 0
    for at_ns, opens, key in edges:
        length_ns = at_ns - last_ns
        if is_exposed and length_ns:
            if in_flight:
                each_ns, over = divmod(length_ns, len(in_flight))
                for place, owner in enumerate(sorted(in_flight)):
                    shares[owner] = shares.get(owner, 0) + each_ns + (place < over)
            else:
                ownerless_ns += length_ns
        last_ns = at_ns
        if key == -1:
            is_exposed = bool(opens)
        elif opens:
            in_flight.add(key)
        else:
            in_flight.discard(key)
    return shares, ownerless_ns
