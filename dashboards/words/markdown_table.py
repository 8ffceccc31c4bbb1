"""Markdown that shows users' names as they are: cells and tables."""

from __future__ import annotations

from collections.abc import Sequence

from shardtoll.dashboards.words.escaped import plain


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return ["| " + " | ".join(map(cell, row)) + " |" for row in (head, tuple("---" for _ in head), *rows)]


def cell(text: str) -> str:
    """Return text that Markdown shows as it is: names come from users' programs."""
    return plain(text, max(1, len(text) * 10))
