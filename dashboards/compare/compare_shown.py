"""A comparison of two runs on a terminal, by rich, and as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardtoll.dashboards.compare.rows import Row, sections, unit_words
from shardtoll.dashboards.terminal.answers import indented, labelled, table
from shardtoll.dashboards.words import markdown_table
from shardtoll.dashboards.words.markdown_table import cell
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.answers.comparison import Comparison

TABLE_WIDTH: Final = 110
"""Narrower terminals get lines."""
_STYLE: Final = {"changed": "bold red", "no change": "bold green", "too few steps": "bold yellow"}
_CHANGED: Final = ("more", "less", "added", "removed", "dtype", "size", "count", "time", "new", "gone")
_MOST: Final = 900


def renderable(comparison: Comparison, width: int) -> RenderableType:
    """Return it for a terminal of that width."""
    names = f"{clip(comparison.before.name, 200)} -> {clip(comparison.after.name, 200)}"
    parts: list[RenderableType] = [
        Text(clip(comparison.headline, _MOST), style=_STYLE[comparison.verdict], overflow="fold"),
        Text(names, style="dim", overflow="fold"),
        *labelled("not alike", comparison.warnings, _MOST),
        *(Text(clip(words, _MOST), style="dim", overflow="fold") for words in comparison.notes),
    ]
    for section in sections(comparison):
        parts.append(Text(f"\n{section.title}", style="bold", overflow="fold"))
        if width < TABLE_WIDTH:
            parts += indented(_line(section.heads, row) for row in section.rows)
        else:
            parts.append(table(section.heads, [[*map(_cell, row)] for row in section.rows], verdicts=True))
        if section.left:
            parts.append(Text(f"and {section.left:,} more, which are in the JSON (-o out.json)", style="dim"))
    return Group(*parts)


def _line(heads: Sequence[str], row: Row) -> Text:
    text = Text(overflow="fold")
    text.append(row[0], style="bold")
    for head, words in zip(heads[1:], row[1:], strict=True):
        if words and words != "-":
            text.append(f"; {head} " if head else "; ", style="dim")
            text.append_text(_cell(words))
    return text


def _cell(words: str) -> Text:
    # Names are text, never markup.
    return Text(words, style="bold yellow" if words.split(",")[0] in _CHANGED else "")


def markdown(comparison: Comparison) -> str:
    """Return it as Markdown: the answer, then tables."""
    lines = [
        f"# shardtoll compare: {comparison.verdict}",
        "",
        f"**{cell(comparison.headline)}**",
        "",
        f"{cell(comparison.before.name)} -> {cell(comparison.after.name)}. {cell(unit_words(comparison))}",
        "",
        *(f"- not alike: {cell(words)}" for words in comparison.warnings),
        *(f"- {cell(words)}" for words in comparison.notes),
    ]
    for section in sections(comparison):
        lines += ["", f"## {cell(section.title)}", "", *markdown_table.table(section.heads, section.rows)]
        if section.left:
            lines += ["", f"and {section.left:,} more, which are in the JSON"]
    return "\n".join(lines) + "\n"
