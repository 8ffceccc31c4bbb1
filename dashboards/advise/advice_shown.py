"""Advice on a terminal, by rich, and as Markdown."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardtoll.dashboards.advise.advice_rows import Section, lines, sections
from shardtoll.dashboards.terminal.answers import indented, table
from shardtoll.dashboards.terminal.fitted import tight
from shardtoll.dashboards.words import markdown_table
from shardtoll.dashboards.words.markdown_table import cell
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.answers.advice import Advice

_WIDE: Final = 120
"""Narrower terminals get tables whose names are folded, or lines if those do not fit."""
_SHORT: Final = 4
_NAMES: Final = ("layout",)
"""Heads of columns of names."""
_MOST: Final = 900


def renderable(advice: Advice, width: int) -> RenderableType:
    """Return it for a terminal of that width."""
    style = "bold red" if advice.best is None else "bold green"
    parts: list[RenderableType] = [Text(clip(advice.headline, _MOST), style=style, overflow="fold")]
    for section in sections(advice):
        parts.append(Text(f"\n{section.title}", style="bold", overflow="fold"))
        if section.lead:
            parts.append(Text(section.lead, style="dim", overflow="fold"))
        if len(section.heads) > _SHORT and width < _WIDE:
            names = [place for place, head in enumerate(section.heads) if head in _NAMES]
            narrow = tight(section.heads, section.rows, width, words=names)
            parts += [narrow] if narrow else indented(_line(section, row) for row in section.rows)
        else:
            parts.append(table(section.heads, [[*map(Text, row)] for row in section.rows], verdicts=True))
    parts.append(Text(""))
    parts += [Text(clip(words, _MOST), overflow="fold") for words in lines(advice)]
    return Group(*parts)


def _line(section: Section, row: tuple[str, ...]) -> Text:
    text = Text(row[0], style="bold", overflow="fold")
    for head, words in zip(section.heads[1:], row[1:], strict=True):
        text.append(f"; {head} ", style="dim").append(words, style="not bold")
    return text


def markdown(advice: Advice) -> str:
    """Return it as Markdown: the answer, then tables."""
    made = ["# shardtoll advise", "", f"**{cell(advice.headline)}**"]
    for section in sections(advice):
        made += ["", f"## {cell(section.title)}", ""]
        if section.lead:
            made += [cell(section.lead), ""]
        made += markdown_table.table(section.heads, section.rows)
    made += ["", *(f"- {cell(words)}" for words in lines(advice))]
    return "\n".join(made) + "\n"
