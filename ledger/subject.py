"""Which records a finding speaks of: those on its ranks that fit every part of its place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from shardtoll.ledger.finding import Finding

if TYPE_CHECKING:
    import pandas as pd

NAMED: Final = ("phase", "module", "parameter", "source", "group", "mesh_dim")
"""Parts of a place that name a column of the records; a record whose value is unknown does not fit."""

Records: TypeAlias = Literal["collectives", "computes"]

OF_COMPUTES: Final = ("duplicated-compute", "recompute", "straggler")
"""Kinds whose place is operators: the late rank's is where it computes for longer."""
OF_TIME: Final = (
    *("data-stall", "host-sync", "transfer-stall", "checkpoint-stall", "duplicated-data"),
    *("pipeline-imbalance", "unattributed-time", "incomplete-input", "clock-skew"),
)
"""Kinds that speak of time, of ranks or of the report itself: of no record in particular."""


def speaks_of(kind: str) -> Records | None:
    """Return the table that a kind of finding speaks of; None for none.

    What stands at the same place in the other table is not meant: computing a module twice says nothing
    against its collectives.
    """
    if kind in OF_TIME:
        return None
    return "computes" if kind in OF_COMPUTES else "collectives"


def subject(finding: Finding, frame: pd.DataFrame, of: Records = "collectives") -> pd.Series[bool]:
    """Return which rows of a frame of that table the finding speaks of; see `speaks_of`.

    A place without any part speaks of the whole step: of no record in particular. `op` is the collective's
    own or the operator that caused it. `*` in a name stands for one part of a dotted name, as in
    `layers.*.mlp`; the group of a finding may be told by its name alone.
    """
    where = finding.where
    fits = frame["rank"].isin(finding.ranks)
    if speaks_of(finding.kind) != of:
        return fits & False
    parts = 0
    for name in NAMED:
        wanted = getattr(where, name)
        if wanted is None or name not in frame:
            continue
        parts += 1
        fits &= _equal(frame[name], wanted)
    if where.op is not None:
        parts += 1
        same = _equal(frame["op"], where.op)
        if "caused_by_op" in frame:
            same |= _equal(frame["caused_by_op"], where.op)
        fits &= same
    return fits if parts else fits & False


def _equal(column: pd.Series[Any], wanted: str) -> pd.Series[bool]:
    if "*" not in wanted:
        return (column == wanted).fillna(False).astype(bool)
    pattern = re.compile(r"[^.]+".join(map(re.escape, wanted.split("*"))))
    # Each name once: a long run has millions of rows and a few hundred names.
    known = {name for name in column.dropna().unique() if pattern.fullmatch(str(name))}
    return column.isin(known)
