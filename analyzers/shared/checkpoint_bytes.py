"""How many bytes one checkpoint wrote, and how fast: from saves whose bytes are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Written(NamedTuple):
    """Sizes and times of one checkpoint, in the mean of the saves whose bytes are known."""

    bytes: int
    """Sum over all ranks that save."""
    blocked_ns: float
    """How long such a save blocks the rank that they block longest."""

    @property
    def gbps(self) -> float:
        """GB/s of all ranks."""
        return self.bytes / self.blocked_ns


def written(rows: Iterable[Mapping[str, Any]]) -> Written | None:
    """Return what the rows of saves wrote: `rank`, `count`, `total_ns` and `bytes`, None if unknown.

    Saves of unknown bytes (they failed, or go on after the steps) are left out of every mean: bytes, count
    and time. None if a rank has only such saves, since the other ranks' bytes are not those of a whole
    checkpoint.
    """
    by_rank: dict[int, list[int]] = {}
    for row in rows:
        mine = by_rank.setdefault(int(row["rank"]), [0, 0, 0])
        if row["bytes"] is not None and row["count"]:
            for place, value in enumerate((row["total_ns"], row["bytes"], row["count"])):
                mine[place] += int(value)
    if not by_rank or not all(saves for _, _, saves in by_rank.values()):
        return None
    blocked_ns, _, saves = max(by_rank.values())
    if not blocked_ns:
        return None
    return Written(round(sum(size / count for _, size, count in by_rank.values())), blocked_ns / saves)
