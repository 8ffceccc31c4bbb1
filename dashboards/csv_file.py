"""The report as CSV: one file of collectives, and one of findings beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from shardtoll.dashboards import summary
from shardtoll.dashboards.files import write as write_file
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
)
_FINDINGS: Final = pa.schema(
    [(name, pa.int64()) for name in _INTS] + [(name, pa.string()) for name in _TEXTS]
)

_FORMULA: Final = r"^[\s\x00]*[=+\-@]|^[\t\r\n]"
"""What spreadsheets compute when they open the file: names in it come from whoever wrote the trace."""


def findings_path(path: Path) -> Path:
    """Return where the findings go: `x.findings.csv` beside `x.csv`."""
    return path.with_suffix(".findings.csv")


def write(report: Report, path: Path) -> list[Path]:
    """Write `path` (one row a collective and rank) and its findings; return the files written.

    Unknown is an empty field, an empty string is `""`. Text that a spreadsheet would take for a formula
    begins with `'`. Raises UsageError where writing fails.
    """
    findings = pa.Table.from_pylist(
        [_row(at, finding) for at, finding in summary.by_severity(report.findings)], schema=_FINDINGS
    )
    second = findings_path(path)
    write_file(path, _text(report.tables["collectives"]))
    write_file(second, _text(findings))
    return [path, second]


def _text(table: pa.Table) -> bytes:
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            column = table.column(at)
            quoted = pc.binary_join_element_wise("'", column, "")
            table = table.set_column(
                at, field, pc.if_else(pc.match_substring_regex(column, _FORMULA), quoted, column)
            )
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def _row(at: int, finding: Finding) -> dict[str, Any]:
    where = finding.where
    row = {
        "rank_on_bill": at,
        **{name: getattr(finding, name) for name in (*_INTS[1:], *_TEXTS[:4])},
        "ranks": " ".join(map(str, finding.ranks)),
        **{name: getattr(where, name) for name in _TEXTS[5:12]},
        "remedy": finding.remedy.text if finding.remedy else None,
    }
    # A lone surrogate has no UTF-8 form; it stands as `?`.
    return {
        key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for key, value in row.items()
    }
