"""What `shardtoll compare` found as a file: JSON, Markdown for a pull request, or a page."""

from __future__ import annotations

import json
from pathlib import Path

from shardtoll.dashboards import compare_rows
from shardtoll.dashboards.files import write as write_file
from shardtoll.dashboards.markdown_table import cell, table
from shardtoll.ledger.comparison import Comparison, comparison_to_json


def to_json(found: Comparison) -> str:
    """Return it as one line of JSON."""
    return json.dumps(comparison_to_json(found), allow_nan=False, separators=(",", ":"))


def write_json(found: Comparison, path: Path) -> list[Path]:
    """Write the JSON and return the files written; UsageError where that fails."""
    write_file(path, to_json(found).encode())
    return [path]


def write_markdown(found: Comparison, path: Path) -> list[Path]:
    """Write a page of Markdown and return the files written; UsageError where that fails."""
    write_file(path, markdown(found).encode())
    return [path]


def write_html(found: Comparison, path: Path) -> list[Path]:
    """Write the page and return the files written; UsageError where that fails."""
    # Plotly is imported only where a page is wanted.
    from shardtoll.dashboards.compare_page import render

    write_file(path, render(found).encode())
    return [path]


def markdown(found: Comparison) -> str:
    """Return it as Markdown: the answer, then tables."""
    lines = [
        f"# shardtoll compare: {found.verdict}",
        "",
        f"**{cell(found.headline)}**",
        "",
        f"{cell(found.before.name)} -> {cell(found.after.name)}. {cell(compare_rows.unit_words(found))}",
        "",
        *(f"- not alike: {cell(words)}" for words in found.warnings),
        *(f"- {cell(words)}" for words in found.notes),
    ]
    for part in compare_rows.sections(found):
        lines += ["", f"## {cell(part.title)}", "", *table(part.heads, part.rows)]
        if part.left:
            lines += ["", f"and {part.left:,} more, which are in the JSON"]
    return "\n".join(lines) + "\n"
