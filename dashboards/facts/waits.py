"""The report's facts about waiting: for whom others waited in each step, and who was late to which
collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from shardtoll.dashboards.facts.row_codes import ints
from shardtoll.ledger import Report
from shardtoll.ledger.records.columns import column
from shardtoll.ledger.records.levels import alike_steps
from shardtoll.ledger.tables.tables import to_frame
from shardtoll.ledger.words import human

Floats = npt.NDArray[np.float64]

SHOWN: Final = 12

HEADS: Final = ("step", "op", "group", "message", "transfer", "longest wait", "late rank", "busbw")

_COLUMNS: Final = (
    *("step", "op", "group", "mesh_dim", "group_size", "message_bytes"),
    *("wait_ns", "transfer_ns", "busbw_gbps", "late_rank", "late_ns"),
)


class Grid(Struct, frozen=True):
    """A number for each rank (row) and step (column); NaN inside is unknown and never leaves a renderer."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    ns: Floats
    waits: bool
    """Whether the numbers are waiting for the rank; else what it computes beyond the median rank."""


def by_rank_and_step(report: Report) -> Grid | None:
    """Return for each rank and step how long others waited for the rank.

    If no collective is matched: compute beyond the median rank, which shows less of who is late. None if
    neither is known.
    """
    for name in ("waited_for_ns", "compute_beyond_ns"):
        table = report.tables["steps"]
        waits = name == "waited_for_ns"
        if not waits:
            table = table.filter(pc.is_valid(table.column(name)))
        if table.column(name).null_count < table.num_rows:
            frame = to_frame(table.select(["rank", "step", name])).astype({name: "float64"})
            wide = frame.pivot_table(index="rank", columns="step", values=name, aggfunc="first", dropna=False)
            numbers = wide.to_numpy(dtype=np.float64)
            return Grid(tuple(map(int, wide.index)), tuple(map(int, wide.columns)), numbers, waits=waits)
    return None


class Late(Struct, frozen=True):
    """One collective, all of whose ranks are on record."""

    step: int | None
    op: str
    group: str
    """The mesh dimension it spans; the group's name if there is none."""
    group_size: int
    message_bytes: int | None
    """The largest of its ranks'."""
    transfer_ns: float
    """Transfer time of the rank in the middle, the lower one of two; of those with a bandwidth if there are
    any."""
    wait_ns: int
    """Wait of the rank that waited longest."""
    rank: int | None
    """The rank that came last; None if it came with the one before it."""
    late_ns: int
    """By how much the last rank came after the one before it."""
    busbw_gbps: float | None
    """Bandwidth of that rank; None if no rank's is known."""

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
    """Return the matched collectives in which a rank waited longest, the worst first; and how many there are.

    Among equal ones those exposed longer come first.

    Messages between two ranks are left out. If there are others, so are steps that some ranks surveyed and
    others watched: they wait for capture.
    """
    table = report.tables["collectives"]
    usable = pc.and_(pc.is_valid(table.column("late_ns")), pc.is_valid(table.column("match_id")))
    usable = pc.and_(usable, pc.invert(pc.is_in(table.column("op"), column(["send", "recv"], pa.string()))))
    steps = report.tables["steps"]
    uneven = sorted(set(steps.column("step").to_pylist()) - set(alike_steps(steps)))
    if uneven:
        usable = pc.and_(usable, pc.invert(pc.is_in(table.column("step"), column(uneven, pa.int64()))))
    rows = np.flatnonzero(ints(usable.cast(pa.int64())))
    if not len(rows):
        return [], 0
    match = ints(table.column("match_id"))
    rows = rows[np.argsort(match[rows], kind="stable")]
    first = np.flatnonzero(np.diff(match[rows], prepend=-1))
    exposed = pc.coalesce(table.column("exposed_ns"), table.column("duration_ns"))
    costs = [ints(pc.fill_null(column, 0))[rows] for column in (exposed, table.column("wait_ns"))]
    worst = np.lexsort([-np.maximum.reduceat(cost, first) for cost in costs])[:most]
    parts = np.split(rows, first[1:])
    columns = table.select(list(_COLUMNS))
    shown = (columns.take(column(parts[place].tolist(), pa.int64())).to_pylist() for place in worst)
    return [_late(members) for members in shown], len(first)


def _late(rows: Sequence[Mapping[str, Any]]) -> Late:
    first = rows[0]

    def known(name: str) -> list[Any]:
        return [row[name] for row in rows if row[name] is not None]

    # Both of one rank: medians of ranks' times and of their bandwidths are of two transfers.
    timed = [row for row in rows if row["transfer_ns"] is not None]
    timed = [row for row in timed if row["busbw_gbps"] is not None] or timed
    timed.sort(key=lambda row: float(row["transfer_ns"]))
    middle = timed[(len(timed) - 1) // 2]
    return Late(
        step=first["step"],
        op=first["op"],
        group=first["group"] if first["mesh_dim"] is None else first["mesh_dim"],
        group_size=first["group_size"],
        message_bytes=max(known("message_bytes"), default=None),
        transfer_ns=float(middle["transfer_ns"]),
        wait_ns=max(known("wait_ns")),
        rank=first["late_rank"],
        late_ns=first["late_ns"],
        busbw_gbps=middle["busbw_gbps"],
    )
