"""Markdown that shows users' names as they are: cells and tables."""

from __future__ import annotations

from collections.abc import Sequence

from shardtoll.dashboards.text import clean


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return ["| " + " | ".join(map(cell, row)) + " |" for row in (head, tuple("---" for _ in head), *rows)]


def cell(text: str) -> str:
    """Return text that Markdown shows as it is: names come from users' programs."""
    shown = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return "".join(f"\\{char}" if char in "`*[]" else char for char in shown)
