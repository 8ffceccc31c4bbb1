"""Which ranks a group has, in its order: groups of one mesh dimension may share a name."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

from shardtoll.ledger import Report

if TYPE_CHECKING:
    import pandas as pd

KEYS: Final = ("group", "rank", "group_size")


def members(report: Report, frame: pd.DataFrame) -> dict[tuple[Hashable, ...], tuple[int, ...] | None]:
    """Return the ranks of the group of every (group, rank, group_size) in the frame; None where not known.

    As the analyses do it: a group that was never described is known only when it is as large as the job.
    """
    world = tuple(range(report.run.world_size))
    described: dict[tuple[str, int, int], set[tuple[int, ...]]] = {}
    for group in report.groups:
        for rank in group.ranks:
            described.setdefault((group.name, rank, group.size), set()).add(group.ranks)
    found: dict[tuple[Any, ...], tuple[int, ...] | None] = {}
    for name, rank, size in frame[list(KEYS)].drop_duplicates().itertuples(index=False):
        fits = described.get((name, rank, size)) or ({world} if size == len(world) > rank >= 0 else set())
        found[name, rank, size] = next(iter(fits)) if len(fits) == 1 else None
    return found
