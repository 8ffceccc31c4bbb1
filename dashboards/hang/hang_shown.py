"""Who is stuck, where and since when: on a terminal, by rich, and as Markdown."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardtoll.dashboards.hang import hang_rows as rows
from shardtoll.dashboards.terminal.answers import head, indented, labelled, table
from shardtoll.dashboards.words import markdown_table
from shardtoll.dashboards.words.markdown_table import cell
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.words import human

TABLE_WIDTH: Final = 100
"""Narrower terminals get the tables as lines."""
_MOST: Final = 900


def renderable(answer: HangAnswer, width: int) -> RenderableType:
    """Return it for a terminal of that width."""
    parts: list[RenderableType] = [
        head("hang", _subject(answer), clip(answer.verdict, _MOST), passed=not answer.hang)
    ]
    remedy, divergence = rows.remedy(answer), rows.divergence_words(answer)
    parts += [Text(f"remedy: {remedy}")] if remedy else []
    parts += [Text(divergence)] if divergence else []
    for title, heads, made in (
        ("ranks", rows.RANK_HEADS, rows.rank_rows(answer)),
        ("collectives that ranks wait in", rows.GROUP_HEADS, rows.group_rows(answer)),
    ):
        if not made:
            continue
        parts.append(Text(f"\n{title}", style="bold"))
        if width >= TABLE_WIDTH:
            parts.append(table(heads, made, verdicts=True))
        else:
            parts += indented(
                ", ".join(f"{name} {value}" for name, value in zip(heads, row, strict=True)) for row in made
            )
    if len(answer.ranks) > rows.MOST_ROWS:
        parts.append(Text(f"and {len(answer.ranks) - rows.MOST_ROWS} more ranks, which are in the JSON file"))
    lines = rows.error_lines(answer)
    if lines:
        parts += [Text("\nmore", style="bold"), *indented(lines)]
    parts += labelled("note", answer.notes, _MOST)
    return Group(*parts)


def _subject(answer: HangAnswer) -> str:
    count = sum(stand.standing != "no file" for stand in answer.ranks)
    return f"{human.plural(count, 'rank')} read"


def markdown(answer: HangAnswer) -> str:
    """Return it as Markdown: the verdict and tables of ranks and collectives."""
    remedy, divergence = rows.remedy(answer), rows.divergence_words(answer)
    lines = [
        f"# shardtoll hang: {'hang' if answer.hang else 'no hang'}",
        "",
        f"**{cell(clip(answer.verdict, _MOST))}**",
        "",
        *([cell(remedy), ""] if remedy else []),
        *([cell(divergence), ""] if divergence else []),
        *markdown_table.table(rows.RANK_HEADS, rows.rank_rows(answer)),
        "",
    ]
    groups = rows.group_rows(answer)
    if groups:
        lines += [*markdown_table.table(rows.GROUP_HEADS, groups), ""]
    lines += [f"- {cell(line)}" for line in (*rows.error_lines(answer), *answer.notes)]
    return "\n".join(lines).rstrip("\n") + "\n"
