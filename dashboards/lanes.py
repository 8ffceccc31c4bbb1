"""The rows of the timeline: one a rank, or one for each stream or group of a rank where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shardtoll.dashboards.figure import literal
from shardtoll.dashboards.row_codes import Ints
from shardtoll.dashboards.text import clip

if TYPE_CHECKING:
    import pandas as pd

RANKS: Final = 16
"""With more ranks each has one row: they would be too thin to see."""
EACH: Final = 4
"""Rows that a rank has at most; the last one then holds all its other streams or groups."""
OTHERS: Final = "others"


@dataclass(frozen=True, slots=True)
class Lanes:
    """Rows from the top, numbered from 0."""

    of_call: Ints
    """Row of each collective of the frame."""
    ranks: tuple[int, ...]
    """Rank of each row."""
    names: tuple[str, ...]
    """Stream or group of each row; empty where its rank has no other."""
    notes: tuple[str, ...]

    def label(self, row: int) -> str:
        """Return what stands at the axis."""
        name = f" · {literal(self.names[row], 14)}" if self.names[row] else ""
        return f"rank {self.ranks[row]}{name}"

    def extent(self) -> dict[int, tuple[float, float]]:
        """Return rank -> the middle of its rows, and how far its first and last row lie from there."""
        found = {}
        for rank in dict.fromkeys(self.ranks):
            rows = [row for row, own in enumerate(self.ranks) if own == rank]
            found[rank] = ((rows[0] + rows[-1]) / 2, (rows[-1] - rows[0]) / 2)
        return found


def lanes(calls: pd.DataFrame, ranks: Sequence[int]) -> Lanes:
    """Return the rows for a frame of collectives on these ranks.

    A rank's collectives are split by device stream where any is known, else by mesh dimension or group.
    """
    own = calls["rank"].to_numpy(dtype=np.int64)
    at = {rank: row for row, rank in enumerate(ranks)}
    single = Lanes(_looked_up(own, at), tuple(ranks), ("",) * len(ranks), ())
    if calls["stream"].notna().any():
        words = calls["stream"].map(lambda stream: f"stream {stream}", na_action="ignore").fillna("no stream")
        what = "stream"
    else:
        words, what = calls["mesh_dim"].fillna(calls["group"]), "group"
    words = words.astype(str)
    weight = calls["duration_ns"].groupby([calls["rank"], words]).sum().sort_index()
    if int(weight.groupby(level=0).size().max()) < 2:
        return single
    if len(ranks) > RANKS:
        note = f"Each rank has one row: there are {len(ranks)}, and up to {RANKS} have one for each {what}."
        return Lanes(single.of_call, single.ranks, single.names, (note,))
    place: dict[tuple[int, str], int] = {}
    rows: list[tuple[int, str]] = []
    folded = False
    for rank in ranks:
        known = list(weight[rank].index) if rank in weight.index.get_level_values(0) else []
        kept = known
        if len(known) > EACH:
            folded = True
            dear = weight[rank].sort_values(ascending=False, kind="stable").index[: EACH - 1]
            kept = [name for name in known if name in set(dear)]
        for name in kept:
            place[rank, name] = len(rows)
            rows.append((rank, name if len(known) > 1 else ""))
        for name in (name for name in known if name not in set(kept)):
            place[rank, name] = len(rows)
        if len(known) > len(kept):
            rows.append((rank, OTHERS))
        if not known:
            rows.append((rank, ""))
    pairs = (
        calls["rank"].astype("int64").to_frame("rank").assign(word=words).groupby(["rank", "word"], sort=True)
    )
    of_pair = np.array([place[int(rank), str(word)] for rank, word in pairs.size().index], dtype=np.int64)
    of_call: Ints = of_pair[pairs.ngroup().to_numpy(dtype=np.int64)]
    notes: tuple[str, ...] = ()
    if folded:
        notes = (f"A rank has at most {EACH} rows; the one named {OTHERS} holds its other {what}s.",)
    return Lanes(of_call, tuple(rank for rank, _ in rows), tuple(clip(name, 60) for _, name in rows), notes)


def _looked_up(own: Ints, at: dict[int, int]) -> Ints:
    different, inverse = np.unique(own, return_inverse=True)
    rows: Ints = np.array([at[int(rank)] for rank in different], dtype=np.int64)[inverse]
    return rows
