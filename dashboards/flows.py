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
import numpy.typing as npt

from shardtoll.dashboards.members import KEYS, members
from shardtoll.ledger import Report

if TYPE_CHECKING:
    import pandas as pd

NEXT: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
SPREAD: Final = ("all_to_all", "scatter")
DIRECT: Final = ("send", "gather")

NOWHERE: Final = -1
"""Cell of bytes of which it is not known to whom they go."""

Ints = npt.NDArray[np.int64]


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
    one = np.flatnonzero((total > 0) & ~spread)
    parts = [(one, cells[to[one]], total[one])]
    rank = frame["rank"].to_numpy(dtype=np.int64)
    for at in np.flatnonzero(spread):
        group = groups[key[at]]
        assert group is not None, "spread among known ranks only"
        parts.append(_spread(int(at), int(rank[at]), group, int(total[at]), cells))
    row, cell, amount = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(row, kind="stable")
    return Flows(row[order], cell[order], amount[order])


def _next(ranks: tuple[int, ...] | None, rank: int) -> int:
    if ranks is None or rank not in ranks:
        return NOWHERE
    return ranks[(ranks.index(rank) + 1) % len(ranks)]


def _spread(row: int, rank: int, group: tuple[int, ...], total: int, cells: Ints) -> tuple[Ints, Ints, Ints]:
    """Return equal parts for all others; what does not divide goes to the first ones after the rank."""
    own = group.index(rank)
    others = np.array([*group[own + 1 :], *group[:own]], dtype=np.int64)
    if not len(others):
        return np.array([row]), np.array([NOWHERE]), np.array([total])
    each, more = divmod(total, len(others))
    parts = np.full(len(others), each, dtype=np.int64)
    parts[:more] += 1
    cell, at = np.unique(cells[others], return_inverse=True)
    sums = np.zeros(len(cell), dtype=np.int64)
    np.add.at(sums, at, parts)
    sent = sums > 0
    return np.full(int(sent.sum()), row, dtype=np.int64), cell[sent], sums[sent]
