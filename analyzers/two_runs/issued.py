"""Number of collectives and bytes that a step issued: one count for every command that compares two runs.

A figure is a mean over the ranks seen, in the steps whose times are compared.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from msgspec import Struct

from shardtoll.analyzers.two_runs.steps import Chosen, tabulated
from shardtoll.ledger import Report
from shardtoll.ledger.records.levels import in_steps
from shardtoll.ledger.tables.tables import to_frame

Array = npt.NDArray[np.float64]

CALLS = "collectives"
BYTES = "message bytes"


class Issued(Struct, frozen=True):
    """Collectives and bytes that the compared steps of one run issued."""

    calls: Array
    """(steps,): collectives, a mean over ranks."""
    message_bytes: Array
    calls_at_least: bool
    """Whether a group counted more collectives than are on record."""
    bytes_at_least: bool
    """Whether that is so, or the size of a collective is unknown."""


def issued(report: Report, chosen: Chosen) -> Issued:
    """Return what a run's compared steps issued."""
    numbers = chosen.timed
    table = report.tables["collectives"].select(["step", "rank", "message_bytes"])
    frame = to_frame(in_steps(table, numbers))
    step = frame["step"].to_numpy(dtype=np.int64)
    sizes = frame["message_bytes"].to_numpy(dtype=np.float64, na_value=np.nan)
    ranks = len(report.run.ranks_seen)
    none = np.zeros(len(step), dtype=np.int64)
    calls, moved = (
        tabulated(none, 1, step, numbers, values, ranks)[0]
        for values in (np.ones(len(step)), np.nan_to_num(sizes))
    )
    lacks = _lacking(report, numbers)
    return Issued(calls, moved, lacks, lacks or bool(np.isnan(sizes).any()))


def _lacking(report: Report, numbers: tuple[int, ...]) -> bool:
    """Return whether a group counted more collectives in these steps than are on record."""
    counts = in_steps(report.tables["counts"], numbers)
    return bool(pc.any(pc.greater(counts.column("issued"), counts.column("recorded"))).as_py())
