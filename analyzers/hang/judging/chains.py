"""Finds the ends of chains of waits: ranks that wait for none, or a circle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardtoll.analyzers.hang.standing.waiting import Wait


def in_collective(waits: Mapping[int, Wait], wait: Wait) -> tuple[int, ...]:
    """Return the ranks that wait in the same collective, ascending; a send or receive is its rank's alone."""
    if wait.is_point_to_point:
        return (wait.rank,)
    same = [
        rank
        for rank, each in waits.items()
        if (each.key, each.place) == (wait.key, wait.place) and not each.is_point_to_point
    ]
    return tuple(sorted(same))


def ends_of(waits: Mapping[int, Wait], rank: int) -> tuple[int, ...]:
    """Return the ranks at the end of the chain of waits that begins at a rank: they wait for no rank."""
    ends, seen, left = [], {rank}, [rank]
    taken: set[int] = set()
    while left:
        current = left.pop()
        wait = waits.get(current)
        if wait is None or not wait.missing:
            ends.append(current)
            continue
        # Many ranks wait for the same ones.
        if id(wait.missing) in taken:
            continue
        taken.add(id(wait.missing))
        for other in wait.missing:
            if other not in seen:
                seen.add(other)
                left.append(other)
    return tuple(sorted(ends))


def all_missing(waits: Mapping[int, Wait]) -> set[int]:
    """Return all ranks that some rank waits for."""
    alike = {id(wait.missing): wait.missing for wait in waits.values()}
    return {other for missing in alike.values() for other in missing}


def all_ends(waits: Mapping[int, Wait], ranks: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Return the results of `ends_of` for some ranks that wait, once for those that wait for the same."""
    known: dict[int, tuple[int, ...]] = {}
    ends = {}
    for rank in ranks:
        alike = id(waits[rank].missing)
        if alike not in known:
            known[alike] = ends_of(waits, rank)
        ends[rank] = known[alike]
    return ends


def cycle_of(waits: Mapping[int, Wait]) -> tuple[int, ...]:
    """Return ranks that wait for each other in a circle, the lowest first; empty if none do."""
    best: tuple[int, ...] = ()
    ends: dict[int, bool] = {}
    for start in sorted(waits):
        missing = waits[start].missing
        if id(missing) not in ends:
            ends[id(missing)] = not any(other in waits for other in missing)
        path = () if ends[id(missing)] else _back_to(waits, start)
        if path and (not best or len(path) < len(best)):
            best = path
    return best


def _back_to(waits: Mapping[int, Wait], start: int) -> tuple[int, ...]:
    """Return the shortest way along waits from a rank back to itself."""
    came: dict[int, int] = {}
    layer = [start]
    while layer:
        following: list[int] = []
        for rank in layer:
            wait = waits.get(rank)
            for other in () if wait is None else wait.missing:
                if other == start:
                    path = [rank]
                    while path[-1] != start:
                        path.append(came[path[-1]])
                    return tuple(reversed(path))
                if other not in came:
                    came[other] = rank
                    following.append(other)
        layer = following
    return ()
