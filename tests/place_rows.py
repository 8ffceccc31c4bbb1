"""Rows for hand-made findings: those of a report's tables that lie at their place.

Analyses know the rows of their findings. A finding that a test writes down names a place; what lies there on
its ranks is what its author means.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.ledger import Finding, Report, Rows, Where
from shardtoll.ledger.records.finding import RowTable

NAMED = ("phase", "module", "parameter", "source", "group", "mesh_dim")
OF_COMPUTES = ("duplicated-compute", "recompute", "straggler")
OF_STEPS = (
    *("data-stall", "host-sync", "launch-bound", "transfer-stall", "checkpoint-stall", "duplicated-data"),
    *("pipeline-imbalance", "unattributed-time", "incomplete-input", "clock-skew"),
)


def at_place(finding: Finding, frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the rows of a frame on the finding's ranks that fit every part of its place."""
    where = finding.where
    fits = frame["rank"].isin(finding.ranks)
    wanted = {name: getattr(where, name) for name in NAMED if getattr(where, name) is not None}
    for name, value in wanted.items():
        if name in frame:
            pattern = re.compile(r"[^.]+".join(map(re.escape, value.split("*"))))
            fits &= frame[name].map(lambda text, fit=pattern: bool(pd.notna(text) and fit.fullmatch(text)))
    if where.op is not None:
        same = frame["op"] == where.op
        fits &= same | (frame["caused_by_op"] == where.op).fillna(False) if "caused_by_op" in frame else same
    if where.op is None and not any(name in frame for name in wanted):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(fits.fillna(False).to_numpy(dtype=bool))


def with_rows(report: Report) -> Report:
    """Return the report with rows for the findings that name none."""
    return replace(report, findings=tuple(_filled(report, finding) for finding in report.findings))


def _filled(report: Report, finding: Finding) -> Finding:
    if finding.rows:
        return finding
    collectives: npt.ArrayLike = ()
    computes: npt.ArrayLike = ()
    steps: npt.ArrayLike = ()
    if finding.where != Where() and finding.kind not in (*OF_COMPUTES, *OF_STEPS):
        collectives = at_place(finding, report.collectives)
    else:
        steps = np.flatnonzero(report.steps["rank"].isin(finding.ranks).to_numpy(dtype=bool))
        if finding.kind in OF_COMPUTES:
            computes = at_place(finding, report.computes)
    return replace(finding, rows=Rows.of(collectives, computes, steps))


def assert_same_findings(whole: Report, part: Report) -> None:
    """Assert that a part of a report has the same findings, of the same records as far as left."""
    assert [replace(finding, rows=Rows()) for finding in part.findings] == [
        replace(finding, rows=Rows()) for finding in whole.findings
    ]
    for name in get_args(RowTable):
        left = part.tables[name].to_pylist()
        for before, after in zip(whole.findings, part.findings, strict=True):
            records = whole.tables[name].to_pylist()
            lit = before.rows.mask(name, len(records))
            spoken = [row for row, is_lit in zip(records, lit, strict=True) if is_lit]
            lit = after.rows.mask(name, len(left))
            kept = [row for row, is_lit in zip(left, lit, strict=True) if is_lit]
            assert kept == [row for row in spoken if row in left]
