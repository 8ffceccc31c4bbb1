"""Groups whose ranks number the same collectives a constant apart, as the analyses' matching knows them.

A send or recv before the audit, or gloo's monitored barrier, took numbers on some ranks only: they stay apart
for as long as the group lives.
"""

from __future__ import annotations

import numpy as np

from shardtoll.dashboards.row_codes import Bools, Ints, equal_rows


def shifted(group: Ints, rank: Ints, number: Ints, facts: tuple[Ints, ...]) -> Ints:
    """Return those of the groups whose ranks tell one story under numbers a constant apart.

    One value a record in each: its group, rank and sequence number, and what all ranks should tell alike of
    it. One record a rank is no story.
    """
    own = equal_rows(group, rank)
    owners = int(own.max(initial=-1)) + 1
    first = np.full(owners, np.iinfo(np.int64).max)
    np.minimum.at(first, own, number)
    group_of = np.zeros(owners, dtype=np.int64)
    group_of[own] = group
    groups = int(group.max(initial=-1)) + 1
    least, most = np.full(groups, np.iinfo(np.int64).max), np.full(groups, np.iinfo(np.int64).min)
    np.minimum.at(least, group_of, first)
    np.maximum.at(most, group_of, first)
    apart = np.flatnonzero((least < most)[group])
    # One sort of them all: a look through all rows for each group would take their product.
    rows = apart[np.lexsort((number[apart], rank[apart], group[apart]))]
    of_group = np.split(rows, np.flatnonzero(np.diff(group[rows])) + 1) if len(rows) else []
    after = number - first[own]
    found = [int(group[one[0]]) for one in of_group if _one_story(one, own, after, facts)]
    return np.array(found, dtype=np.int64)


def _one_story(rows: Ints, own: Ints, after: Ints, facts: tuple[Ints, ...]) -> bool:
    """Return whether all ranks tell one story in a group's rows, which are in order of rank and number."""
    begins = np.flatnonzero(np.diff(own[rows], prepend=-1, append=-1))
    counts = np.diff(begins)
    if counts.min() != counts.max() or counts[0] < 2:
        return False
    told: list[Bools] = []
    for fact in (after, *facts):
        by_rank = fact[rows].reshape(len(counts), -1)
        told.append((by_rank == by_rank[0]).all())
    return all(told)
