"""The report as CSV: one file of collectives, and next to it those of steps and findings."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from shardtoll.dashboards.facts.finding_table import finding_table
from shardtoll.dashboards.words.files import write as write_file
from shardtoll.ledger import Report

_FORMULA: Final = r"^[\s\x00]*[=+\-@]|^[\t\r\n]"
"""Text that spreadsheets compute when they open the file: names in it come from whoever wrote the trace."""


def beside(path: Path, table: str) -> Path:
    """Return the path of another table: `x.findings.csv` for `x.csv`."""
    return path.with_suffix(f".{table}{path.suffix}")


def write(report: Report, path: Path) -> list[Path]:
    """Write `path` (one row per collective and rank), its steps and its findings; return the files written.

    Unknown is an empty field, an empty string is `""`. Text that a spreadsheet would take for a formula
    begins with `'`. Raises UsageError if writing fails.
    """
    tables = {
        path: report.tables["collectives"],
        beside(path, "steps"): report.tables["steps"],
        beside(path, "findings"): finding_table(report),
    }
    for target, table in tables.items():
        write_file(target, _text(table))
    return list(tables)


def _text(table: pa.Table) -> bytes:
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            column = table.column(place)
            quoted = pc.binary_join_element_wise("'", column, "")
            table = table.set_column(
                place, field, pc.if_else(pc.match_substring_regex(column, _FORMULA), quoted, column)
            )
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink)
    return bytes(sink.getvalue().to_pybytes())
