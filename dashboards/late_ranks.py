"""Each matched collective with the rank that came to it last, the dearest ones first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards import human
from shardtoll.dashboards.arrivals import arrivals
from shardtoll.dashboards.row_codes import NONE, ints
from shardtoll.ledger import Report
from shardtoll.ledger.tables import to_frame

if TYPE_CHECKING:
    import pandas as pd

SHOWN: Final = 12

_COLUMNS: Final = (
    *("step", "op", "group", "mesh_dim", "group_size", "message_bytes"),
    *("wait_ns", "transfer_ns", "busbw_gbps"),
)

HEADS: Final = ("step", "op", "group", "message", "transfer", "longest wait", "late rank", "busbw")


@dataclass(frozen=True, slots=True)
class Late:
    """One collective, all of whose ranks are on record."""

    step: int | None
    op: str
    group: str
    """The mesh dimension it spans; the group's name where there is none."""
    group_size: int
    message_bytes: int | None
    """The largest of its ranks'."""
    transfer_ns: float
    """Median over its ranks, like the bandwidth."""
    wait_ns: int
    """Of the rank that waited longest."""
    rank: int | None
    """The rank that came last; None where it came with the one before it."""
    late_ns: int
    """By how much it came after the one before it."""
    busbw_gbps: float | None

    def cells(self) -> tuple[str, ...]:
        """Return the row in words, in the order of `HEADS`; names are as recorded, not cleaned."""
        late = "none" if self.rank is None else f"{self.rank}, by {human.duration(self.late_ns)}"
        return (
            human.UNKNOWN if self.step is None else str(self.step),
            self.op,
            f"×{self.group_size} {self.group}",
            human.size(self.message_bytes),
            human.duration(self.transfer_ns),
            human.duration(self.wait_ns),
            late,
            human.rate(self.busbw_gbps),
        )


def late_ranks(report: Report, most: int = SHOWN) -> tuple[list[Late], int]:
    """Return the dearest matched collectives, by exposed time on the rank where it is longest; and how many
    there are in all; see `arrivals` for what is among them.
    """
    found = arrivals(report)
    if not len(found.rows):
        return [], 0
    table = report.tables["collectives"]
    cost = ints(pc.coalesce(table.column("exposed_ns"), table.column("duration_ns")))[found.rows]
    dear = np.argsort(-np.maximum.reduceat(cost, found.first), kind="stable")[:most]
    table = table.select(list(_COLUMNS))
    rows = [found.rows[found.first[at] : found.first[at] + found.count[at]] for at in dear]
    frames = [to_frame(table.take(pa.array(own))) for own in rows]
    return [
        _late(frame, int(found.last[at]), int(found.late_ns[at]))
        for at, frame in zip(dear, frames, strict=True)
    ], len(found.first)


def _late(rows: pd.DataFrame, rank: int, late_ns: int) -> Late:
    first = rows.iloc[0]
    sizes, rates = rows["message_bytes"].dropna(), rows["busbw_gbps"].dropna()
    return Late(
        step=_number(first["step"]),
        op=str(first["op"]),
        group=str(first["group"] if _missing(first["mesh_dim"]) else first["mesh_dim"]),
        group_size=int(first["group_size"]),
        message_bytes=int(sizes.max()) if len(sizes) else None,
        transfer_ns=float(rows["transfer_ns"].median()),
        wait_ns=int(rows["wait_ns"].max()),
        rank=None if rank == NONE else rank,
        late_ns=late_ns,
        busbw_gbps=float(rates.median()) if len(rates) else None,
    )


def _number(value: Any) -> int | None:
    return None if _missing(value) else int(value)


def _missing(value: Any) -> bool:
    import pandas as pd

    return bool(pd.isna(value))
