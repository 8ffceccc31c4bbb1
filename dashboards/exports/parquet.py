"""The report as Parquet, one file per table: for pandas, polars, DuckDB and Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from shardtoll.dashboards.exports.csv_file import beside
from shardtoll.dashboards.facts.finding_table import finding_table, utf8
from shardtoll.dashboards.words.files import replacing
from shardtoll.ledger import SCHEMA_VERSION, Finding, Report
from shardtoll.ledger.foreign.plain import to_plain

ALWAYS: Final = ("steps", "findings")
"""Tables that are written even without rows, in addition to the collectives."""

_LARGEST: Final = 1e300
EVIDENCE: Final = pa.field(
    "evidence",
    pa.list_(
        pa.struct(
            [("label", pa.string()), ("number", pa.float64()), ("text", pa.string()), ("unit", pa.string())]
        )
    ),
)


def write(report: Report, path: Path) -> list[Path]:
    """Write `x.parquet` (one row per collective and rank), `x.steps.parquet`, `x.findings.parquet` and a file
    for each other table with rows. Return the files written.

    Columns and types are the ledger's; unknown is null. The file's own metadata has the run and the fabric as
    JSON under `shardtoll`. Raises UsageError if writing fails.
    """
    tables = {path: report.tables["collectives"]}
    every = {**report.tables, "findings": _findings(report)}
    for name in (*ALWAYS, *(name for name in report.tables if name not in ("collectives", *ALWAYS))):
        if name in ALWAYS or every[name].num_rows:
            tables[beside(path, name)] = every[name]
    about = {
        "schema_version": SCHEMA_VERSION,
        "run": to_plain(report.run),
        "headline": report.verdict,
    }
    about["fabric"] = {"name": report.fabric.name, "provenance": report.fabric.provenance}
    metadata = {"shardtoll": json.dumps(about)}
    for target, table in tables.items():
        with replacing(target) as file:
            pq.write_table(table.replace_schema_metadata(metadata), file, compression="zstd")
    return list(tables)


def _findings(report: Report) -> pa.Table:
    evidence = [_evidence(finding) for finding in report.findings]
    return finding_table(report).append_column(EVIDENCE, pa.array(evidence, EVIDENCE.type))


def _evidence(finding: Finding) -> list[dict[str, Any]]:
    rows = []
    for evidence in finding.evidence:
        # A whole number too large for a float stands as its digits.
        number = (
            None
            if evidence.value is None or isinstance(evidence.value, str) or abs(evidence.value) > _LARGEST
            else evidence.value
        )
        text = None if evidence.value is None or number is not None else utf8(str(evidence.value))
        unit = utf8(evidence.unit) if evidence.unit else None
        rows.append({"label": utf8(evidence.label), "number": number, "text": text, "unit": unit})
    return rows
