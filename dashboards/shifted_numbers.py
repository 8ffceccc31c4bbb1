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
    found = [
        one for one in np.flatnonzero(least < most).tolist()
        if _one_story(np.flatnonzero(group == one), own, number - first[own], facts)
    ]  # fmt: skip
    return np.array(found, dtype=np.int64)


def _one_story(rows: Ints, own: Ints, after: Ints, facts: tuple[Ints, ...]) -> bool:
    rows = rows[np.lexsort((after[rows], own[rows]))]
    counts = np.unique(own[rows], return_counts=True)[1]
    if counts.min() != counts.max() or counts[0] < 2:
        return False
    told: list[Bools] = []
    for fact in (after, *facts):
        by_rank = fact[rows].reshape(len(counts), -1)
        told.append((by_rank == by_rank[0]).all())
    return all(told)
