"""From which rank to which rank the wire bytes go, by the algorithm that `volume.wire_bytes` assumes.

Ring and chain: all to the next rank of the group. This holds for a chain, too. The ranks of a broadcast are
each counted as sending; those of a reduce send on until the root has it. Pairwise and scatter: in equal parts
to all others of the group (no record says which bytes of an all_to_all go to whom). Gather: to the root.
Send: to the peer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shardtoll.dashboards.facts.row_codes import Ints
from shardtoll.ledger import Report

if TYPE_CHECKING:
    import pandas as pd

NEXT: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
SPREAD: Final = ("all_to_all", "scatter")
DIRECT: Final = ("send", "gather")

NOWHERE: Final = -1
"""Cell of bytes with an unknown receiver."""


@dataclass(frozen=True, slots=True)
class Flows:
    """Parts of the rows' bytes; three columns of one length, ordered by row."""

    row: Ints
    """Position in the frame."""
    cell: Ints
    """Their receiver; `NOWHERE` if it is unknown."""
    bytes: Ints
    """The parts of a row add up to its wire bytes."""


def flows(report: Report, frame: pd.DataFrame, cell_of: Ints) -> Flows:
    """Return where the `wire_bytes` of each row go, targets folded into cells.

    `frame` has op, group_id, rank, root, wire_bytes, as `calls` gives it. `cell_of`: cell by rank.
    """
    if frame.empty:
        none = np.empty(0, dtype=np.int64)
        return Flows(none, none, none)
    group_id = frame["group_id"].fillna(NOWHERE).to_numpy(dtype=np.int64)
    rank = frame["rank"].to_numpy(dtype=np.int64)
    ranks_of = [group.ranks for group in report.groups]
    next_of = {
        (number, rank_there): _next(ranks_of[number], rank_there)
        for number, rank_there in set(zip(group_id.tolist(), rank.tolist(), strict=True))
        if number != NOWHERE
    }
    pairs = zip(group_id.tolist(), rank.tolist(), strict=True)
    following = np.array([next_of.get(pair, NOWHERE) for pair in pairs], dtype=np.int64)
    op = frame["op"]
    root = frame["root"].to_numpy(dtype=np.int64, na_value=NOWHERE)
    for ranks in (root, following):
        # Roots and groups in a file need not be ranks of the job.
        ranks[(ranks < 0) | (ranks >= len(cell_of))] = NOWHERE
    to = np.where(op.isin(NEXT), following, np.where(op.isin(DIRECT), root, NOWHERE))
    # The last one stands for NOWHERE.
    cells = np.append(cell_of, NOWHERE)
    total = frame["wire_bytes"].to_numpy(dtype=np.int64)
    spread = op.isin(SPREAD).to_numpy(dtype=bool) & (group_id != NOWHERE) & (total > 0)
    others: dict[tuple[int, int], Ints] = {}
    parts = []
    for row_number in np.flatnonzero(spread):
        place = int(group_id[row_number]), int(rank[row_number])
        if place not in others:
            others[place] = cells[_others(ranks_of[place[0]], place[1], len(cell_of))]
        if not len(others[place]):
            spread[row_number] = False
            continue
        cell, amount = _spread(int(total[row_number]), others[place])
        parts.append((np.full(len(cell), row_number, dtype=np.int64), cell, amount))
    direct = np.flatnonzero((total > 0) & ~spread)
    parts.append((direct, cells[to[direct]], total[direct]))
    row, cell, amount = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(row, kind="stable")
    return Flows(row[order], cell[order], amount[order])


def _next(ranks: tuple[int, ...], rank: int) -> int:
    if rank not in ranks:
        return NOWHERE
    return ranks[(ranks.index(rank) + 1) % len(ranks)]


def _spread(total: int, cells: Ints) -> tuple[Ints, Ints]:
    """Return the cells that get something, and how much. Each of `cells`, those of the other ranks in the
    group's order, gets an equal part of the total. The remainder goes to the first ones."""
    each, more = divmod(total, len(cells))
    sums = each * np.bincount(cells + 1)
    sums[: int(cells[:more].max(initial=NOWHERE)) + 2] += np.bincount(cells[:more] + 1, minlength=1)
    sent = np.flatnonzero(sums)
    return sent - 1, sums[sent]


def _others(ranks: tuple[int, ...], rank: int, count: int) -> Ints:
    """Return the other ranks of a group, from the one after this on; those of a job of `count` ranks."""
    if rank not in ranks:
        return np.empty(0, dtype=np.int64)
    place = ranks.index(rank)
    others = [rank for rank in (*ranks[place + 1 :], *ranks[:place]) if rank < count]
    return np.array(others, dtype=np.int64)


def folded(frame: pd.DataFrame, by: tuple[str, ...] = ()) -> tuple[pd.DataFrame, Ints]:
    """Return the sums of rows that go the same way and are equal in `by`, and the sum that each row is in.

    A thousand ranks that each send to all others from a hundred places are too many parts for one by one.
    """
    keys = ["op", "group_id", "rank", "root", *by]
    if frame.empty:
        return frame, np.empty(0, dtype=np.int64)
    code = frame.groupby(keys, dropna=False, sort=False).ngroup().to_numpy(dtype=np.int64)
    _, first = np.unique(code, return_index=True)
    sums = np.zeros(len(first), dtype=np.int64)
    np.add.at(sums, code, frame["wire_bytes"].to_numpy(dtype=np.int64))
    return frame.iloc[first].reset_index(drop=True).assign(wire_bytes=sums), code
