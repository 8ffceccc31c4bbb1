"""The page as a file."""

from __future__ import annotations

from pathlib import Path

from shardtoll.dashboards.files import write as write_file
from shardtoll.dashboards.page import render
from shardtoll.ledger import Report


def write(report: Report, path: Path) -> list[Path]:
    """Write the page and return the files written; UsageError where that fails."""
    write_file(path, render(report).encode())
    return [path]
