"""The findings as one flat table, a row each in the order of the bill: for CSV, Parquet and spreadsheets."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from shardtoll.ledger import Finding, Report

_INTS: Final = ("rank_on_bill", "toll_ns", "floor_ns", "saving_ns", "bytes", "count")
_TEXTS: Final = (
    "kind",
    "severity",
    "confidence",
    "title",
    "ranks",
    "phase",
    "module",
    "parameter",
    "op",
    "source",
    "group",
    "mesh_dim",
    "remedy",
    "effort",
)
FINDINGS: Final = pa.schema([(name, pa.int64()) for name in _INTS] + [(name, pa.string()) for name in _TEXTS])


def finding_table(report: Report) -> pa.Table:
    """Return one row per finding; `rank_on_bill` is its number, from 1. Unknown is null."""
    rows = [row(number, finding) for number, finding in enumerate(report.findings, start=1)]
    return pa.Table.from_pylist(rows, schema=FINDINGS)


def row(number: int, finding: Finding) -> dict[str, Any]:
    """Return a finding as one flat row."""
    where = finding.where
    cells = {
        "rank_on_bill": number,
        **{name: _fitting(getattr(finding, name)) for name in _INTS[1:]},
        **{name: getattr(finding, name) for name in _TEXTS[:4]},
        "ranks": " ".join(map(str, finding.ranks)),
        **{name: getattr(where, name) for name in _TEXTS[5:12]},
        "remedy": finding.remedy.text if finding.remedy else None,
        "effort": finding.remedy.effort if finding.remedy else None,
    }
    return {key: utf8(value) if isinstance(value, str) else value for key, value in cells.items()}


def _fitting(value: int | None) -> int | None:
    """Return what a column of 64 bits can hold; no cost is larger, so another number is none."""
    return None if value is None or value >= 1 << 63 else value


def utf8(text: str) -> str:
    """Return text that has a UTF-8 form: a lone surrogate has none and stands as `?`."""
    return text.encode("utf-8", "replace").decode()
