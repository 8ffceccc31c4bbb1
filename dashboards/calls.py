"""The collectives added up by rank and by everything that tells of their cause, over the steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards import human
from shardtoll.dashboards.row_codes import Bools, Ints
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.subject import subject
from shardtoll.ledger.tables import to_frame

if TYPE_CHECKING:
    import pandas as pd

SITE: Final = ("op", "group", "group_size", "mesh_dim", "phase", "implicit", "caused_by_op", "module",
               "parameter", "source")  # fmt: skip
KEYS: Final = ("rank", "root", *SITE)
SUMS: Final = ("wire_bytes", "exposed_ns")


@dataclass(frozen=True, slots=True)
class Calls:
    """All collectives of the finished steps; of the whole record where no step finished."""

    rows: pd.DataFrame
    """One row for calls that are equal in `KEYS`: calls, wire_bytes and exposed_ns (sums over what is
    known), unsized and untimed (calls of which that is not known)."""
    steps: int
    """Finished steps; 0 where there are none and everything on record is counted."""
    rank_steps: int
    """Rows of the steps' table: what a mean over ranks and steps divides by."""
    outside: int
    """Collectives left out: outside every finished step, or of ranks that the job does not have."""
    site: Ints
    """For each row, which of `sites` it belongs to."""
    sites: pd.DataFrame = field(repr=False)
    """What is different in `SITE`, once each."""

    @property
    def a_step(self) -> str:
        """Return what sums are divided by, in words."""
        return "a step" if self.steps else "in the whole record"

    def per_step(self, total: int) -> float:
        """Return a sum over steps as a mean step's, whole where it is."""
        return (
            total
            if self.steps <= 1
            else total // self.steps
            if total % self.steps == 0
            else total / self.steps
        )

    def of(self, finding: Finding) -> Bools:
        """Return which rows a finding speaks of."""
        if not finding.ranks or self.rows.empty:
            return np.zeros(len(self.rows), dtype=bool)
        # Names are looked at once a site, not once a rank.
        fits = subject(finding, self.sites.assign(rank=finding.ranks[0])).to_numpy(dtype=bool)
        here: Bools = fits[self.site] & self.rows["rank"].isin(finding.ranks).to_numpy(dtype=bool)
        return here

    def notes(self) -> list[str]:
        """Return what has to be said of every figure made from the calls."""
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
    every = table.num_rows
    # A file may hold ranks that its job does not have.
    table = table.filter(pc.less(table.column("rank"), report.run.world_size))
    if len(steps):
        table = table.filter(pc.is_in(table.column("step"), steps))
    wanted: list[Any] = [([], "count_all")]
    for name in SUMS:
        wanted += [(name, "sum"), (name, "count")]
    # In threads the groups come in any order, and equal reports must give equal bytes.
    sums = table.group_by(list(KEYS), use_threads=False).aggregate(wanted)
    rows = to_frame(_named(sums))
    for name, unknown in (("wire_bytes", "unsized"), ("exposed_ns", "untimed")):
        rows[name] = rows[name].fillna(0).astype(np.int64)
        rows[unknown] = (rows["calls"] - rows[unknown]).astype(np.int64)
    site = np.empty(0, dtype=np.int64)
    if len(rows):
        site = rows.groupby(list(SITE), dropna=False, sort=False).ngroup().to_numpy(dtype=np.int64)
    _, first = np.unique(site, return_index=True)
    return Calls(
        rows=rows,
        steps=len(steps),
        rank_steps=len(numbers),
        outside=every - table.num_rows,
        site=site,
        sites=rows.iloc[first].reset_index(drop=True),
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


def numbered(report: Report, found: Calls) -> list[tuple[int, Bools]]:
    """Return the findings' numbers on the bill with the rows each speaks of; those of none left out."""
    from shardtoll.dashboards.summary import by_severity

    spoken = [(number, found.of(finding)) for number, finding in by_severity(report.findings)]
    return [(number, mask) for number, mask in spoken if mask.any()]
