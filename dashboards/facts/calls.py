"""The sums of collectives by rank and by all facts about their cause, over the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards.facts.row_codes import Bools
from shardtoll.dashboards.facts.spoken import spoken
from shardtoll.ledger import Report
from shardtoll.ledger.tables.tables import to_frame
from shardtoll.ledger.words import human

if TYPE_CHECKING:
    import pandas as pd

SITE: Final = ("op", "group", "group_size", "mesh_dim", "phase", "implicit", "caused_by_op", "module",
               "parameter", "source")  # fmt: skip
KEYS: Final = ("rank", "root", "group_id", *SITE)
SUMS: Final = ("wire_bytes", "exposed_ns")
_SPOKEN: Final = "spoken"


@dataclass(frozen=True, slots=True)
class Calls:
    """All collectives of the finished steps; of the whole record if no step finished."""

    rows: pd.DataFrame
    """One row for calls that are equal in `KEYS`. Columns: calls; wire_bytes and exposed_ns, as sums of the
    known values; unsized and untimed, the numbers of calls without these values."""
    steps: int
    """Finished steps; 0 if there are none and everything on record is counted."""
    rank_steps: int
    """Rows of the steps' table: the divisor of a mean over ranks and steps."""
    outside: int
    """Collectives left out: outside every finished step, or of ranks that the job does not have."""
    findings: Mapping[int, Bools]
    """Number of a finding on the bill -> which rows hold a call that it speaks of; findings of none left
    out."""

    @property
    def a_step(self) -> str:
        """Return what sums are divided by, in words."""
        return "per step" if self.steps else "in the whole record"

    def per_step(self, total: int) -> float:
        """Return a sum over steps as a mean step's, as a whole number if it is one."""
        return (
            total
            if self.steps <= 1
            else total // self.steps
            if total % self.steps == 0
            else total / self.steps
        )

    def notes(self) -> list[str]:
        """Return the notes for every figure made from the calls."""
        if not self.steps:
            return ["No step finished: everything on record is counted, not what a step costs."]
        if not self.outside:
            return []
        return [f"{human.plural(self.outside, 'collective')} outside every finished step not counted."]


def calls(report: Report) -> Calls:
    """Return the sums; Arrow makes them, as a long run has tens of millions of rows."""
    numbers = report.tables["steps"].column("step")
    steps = pc.unique(numbers)
    table = report.tables["collectives"].select([*KEYS, *SUMS, "step"])
    said = spoken(report)
    table = table.append_column(_SPOKEN, pa.array(said.codes))
    every = table.num_rows
    # A file may hold ranks that its job does not have.
    table = table.filter(pc.less(table.column("rank"), report.run.world_size))
    if len(steps):
        table = table.filter(pc.is_in(table.column("step"), steps))
    wanted: list[Any] = [([], "count_all")]
    for name in SUMS:
        wanted += [(name, "sum"), (name, "count")]
    # In threads the groups come in any order, and equal reports must give equal bytes.
    sums = table.group_by([*KEYS, _SPOKEN], use_threads=False).aggregate(wanted)
    parts = to_frame(_named(sums))
    for name, unknown in (("wire_bytes", "unsized"), ("exposed_ns", "untimed")):
        parts[name] = parts[name].fillna(0).astype(np.int64)
        parts[unknown] = (parts["calls"] - parts[unknown]).astype(np.int64)
    # Rows that differ only in the findings that speak of them are one row.
    row = np.empty(0, dtype=np.int64)
    if len(parts):
        row = parts.groupby(list(KEYS), dropna=False, sort=False).ngroup().to_numpy(dtype=np.int64)
    _, first = np.unique(row, return_index=True)
    rows = parts.drop(columns=_SPOKEN).iloc[first].reset_index(drop=True)
    for name in ("calls", *SUMS, "unsized", "untimed"):
        rows[name] = parts[name].groupby(row).sum().to_numpy(dtype=np.int64)
    findings = {}
    for number, flags in said.flags.items():
        mask = np.zeros(len(rows), dtype=bool)
        mask[row[flags[parts[_SPOKEN].to_numpy(dtype=np.int64)]]] = True
        if mask.any():
            findings[number] = mask
    return Calls(
        rows=rows,
        steps=len(steps),
        rank_steps=len(numbers),
        outside=every - table.num_rows,
        findings=findings,
    )


def _named(sums: pa.Table) -> pa.Table:
    names = {
        "count_all": "calls",
        "wire_bytes_sum": "wire_bytes",
        "wire_bytes_count": "unsized",
        "exposed_ns_sum": "exposed_ns",
        "exposed_ns_count": "untimed",
    }
    return sums.rename_columns([names.get(name, name) for name in sums.column_names])
