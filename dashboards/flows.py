"""From which rank to which rank the wire bytes go, by the algorithm that `volume.wire_bytes` assumes.

Ring and chain: all to the next rank of the group. Of a chain, too: the ranks of a broadcast are each counted
as sending, those of a reduce send on until the root has it. Pairwise and scatter: in equal parts to all
others of the group (what an all_to_all sends to whom is not on record). Gather: to the root. Send: to the
peer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shardtoll.dashboards.members import KEYS, members
from shardtoll.dashboards.row_codes import Ints
from shardtoll.ledger import Report

if TYPE_CHECKING:
    import pandas as pd

NEXT: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
SPREAD: Final = ("all_to_all", "scatter")
DIRECT: Final = ("send", "gather")

NOWHERE: Final = -1
"""Cell of bytes of which it is not known to whom they go."""


@dataclass(frozen=True, slots=True)
class Flows:
    """Parts of the rows' bytes; three columns of one length, ordered by row."""

    row: Ints
    """Position in the frame."""
    cell: Ints
    """Where they go; `NOWHERE` where that is not known."""
    bytes: Ints
    """The parts of a row add up to its wire bytes."""


def flows(report: Report, frame: pd.DataFrame, cell_of: Ints) -> Flows:
    """Return where the `wire_bytes` of each row go, targets folded into cells.

    `frame` has op, group, group_size, rank, root, wire_bytes, as `calls` gives it. `cell_of`: cell by rank.
    """
    if frame.empty:
        none = np.empty(0, dtype=np.int64)
        return Flows(none, none, none)
    known = members(report, frame)
    key = frame.groupby(list(KEYS), sort=False).ngroup().to_numpy(dtype=np.int64)
    groups = list(known.values())
    following = np.array(
        [_next(ranks, int(rank)) for (_, rank, _), ranks in known.items()],  # type: ignore[call-overload]
        dtype=np.int64,
    )
    op = frame["op"]
    root = frame["root"].to_numpy(dtype=np.int64, na_value=NOWHERE)
    root[(root < 0) | (root >= len(cell_of))] = NOWHERE
    to = np.where(op.isin(NEXT), following[key], np.where(op.isin(DIRECT), root, NOWHERE))
    # The last one stands for NOWHERE.
    cells = np.append(cell_of, NOWHERE)
    total = frame["wire_bytes"].to_numpy(dtype=np.int64)
    whole = [group is not None for group in groups]
    spread = op.isin(SPREAD).to_numpy(dtype=bool) & np.array(whole, dtype=bool)[key] & (total > 0)
    rank = frame["rank"].to_numpy(dtype=np.int64)
    others: dict[int, Ints] = {}
    parts = []
    for at in np.flatnonzero(spread):
        group = groups[key[at]]
        own = int(key[at])
        if own not in others:
            others[own] = cells[_others(group or (), int(rank[at]))]
        if not len(others[own]):
            spread[at] = False
            continue
        cell, amount = _spread(int(total[at]), others[own])
        parts.append((np.full(len(cell), at, dtype=np.int64), cell, amount))
    one = np.flatnonzero((total > 0) & ~spread)
    parts.append((one, cells[to[one]], total[one]))
    row, cell, amount = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(row, kind="stable")
    return Flows(row[order], cell[order], amount[order])


def _next(ranks: tuple[int, ...] | None, rank: int) -> int:
    if ranks is None or rank not in ranks:
        return NOWHERE
    return ranks[(ranks.index(rank) + 1) % len(ranks)]


def _spread(total: int, cells: Ints) -> tuple[Ints, Ints]:
    """Return the cells that get something, and how much: equal parts of the total for each of `cells`, those
    of the other ranks in the group's order; what does not divide goes to the first ones."""
    each, more = divmod(total, len(cells))
    sums = each * np.bincount(cells + 1)
    sums[: int(cells[:more].max(initial=NOWHERE)) + 2] += np.bincount(cells[:more] + 1, minlength=1)
    sent = np.flatnonzero(sums)
    return sent - 1, sums[sent]


def _others(ranks: tuple[int, ...], rank: int) -> Ints:
    """Return the other ranks of a group, from the one after this on."""
    if rank not in ranks:
        return np.empty(0, dtype=np.int64)
    own = ranks.index(rank)
    return np.array([*ranks[own + 1 :], *ranks[:own]], dtype=np.int64)


def folded(frame: pd.DataFrame, by: tuple[str, ...] = ()) -> tuple[pd.DataFrame, Ints]:
    """Return the rows added up that go the same way and are equal in `by`, and for each row which it is in.

    A thousand ranks that each send to all others from a hundred places are too many parts for one by one.
    """
    keys = ["op", "group", "group_size", "rank", "root", *by]
    if frame.empty:
        return frame, np.empty(0, dtype=np.int64)
    code = frame.groupby(keys, dropna=False, sort=False).ngroup().to_numpy(dtype=np.int64)
    _, first = np.unique(code, return_index=True)
    sums = np.zeros(len(first), dtype=np.int64)
    np.add.at(sums, code, frame["wire_bytes"].to_numpy(dtype=np.int64))
    return frame.iloc[first].reset_index(drop=True).assign(wire_bytes=sums), code
