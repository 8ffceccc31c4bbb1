"""The report as a JSON file, schema version 1: what other programs should read."""

from __future__ import annotations

from pathlib import Path

from shardtoll.dashboards.words.files import write as write_file
from shardtoll.ledger import Report


def write(report: Report, path: Path) -> list[Path]:
    """Write the report's JSON and return the files written; UsageError if that fails."""
    write_file(path, (piece.encode() for piece in report.json_pieces()))
    return [path]
