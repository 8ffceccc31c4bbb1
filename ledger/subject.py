"""Which records a finding speaks of: those on its ranks that fit every part of its place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from shardtoll.ledger.finding import Finding

if TYPE_CHECKING:
    import pandas as pd

NAMED: Final = ("phase", "module", "parameter", "source", "group", "mesh_dim")
"""Parts of a place that name a column of the records; a record whose value is unknown does not fit."""


def subject(finding: Finding, frame: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows of a frame of collectives or computes the finding speaks of.

    A place without any part speaks of the whole step: of no record in particular. `op` is the collective's
    own or the operator that caused it. `*` in a name stands for one part of a dotted name, as in
    `layers.*.mlp`; the group of a finding may be told by its name alone.
    """
    where = finding.where
    fits = frame["rank"].isin(finding.ranks)
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
