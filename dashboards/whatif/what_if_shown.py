"""The step after changes on a terminal, by rich, and as Markdown."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from shardtoll.dashboards.facts import replayed_words as words
from shardtoll.dashboards.terminal.answers import head, indented, labelled
from shardtoll.dashboards.terminal.fitted import fitted
from shardtoll.dashboards.words import markdown_table
from shardtoll.dashboards.words.markdown_table import cell
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.answers.what_if import WhatIf

_MOST = 600


def renderable(answer: WhatIf, width: int) -> RenderableType:
    """Return it for a terminal of that width."""
    parts: list[RenderableType] = [
        head("whatif", clip(answer.run, 200), words.headline(answer), passed=answer.saving_ns >= 0),
        Text(_basis(answer), style="dim", overflow="fold"),
        Text(),
        *fitted(words.CHANGE_HEADS, words.change_rows(answer.changes), width, words={0}, named=1),
        Text(),
        *fitted(words.PARTS_HEADS, words.part_rows(answer), width, words={0}, named=1),
    ]
    for name, lines in (("vanish", answer.vanished), ("appear", answer.appeared)):
        if lines:
            parts.append(Text(f"\nfindings that {name}", style="bold"))
            parts += indented(clip(line, _MOST) for line in lines)
    parts += [
        Text("\nthe critical path after", style="bold").append(
            f" ({words.path_words(answer.path)})", style="not bold"
        ),
        *fitted(words.PATH_HEADS, words.path_rows(answer.path), width, words={0}, named=1),
        *labelled("note", answer.notes, _MOST),
    ]
    return Group(*parts)


def _basis(answer: WhatIf) -> str:
    return words.basis(
        answer.source, len(answer.steps), answer.nodes, answer.replay_error, answer.unknown_share
    )


def markdown(answer: WhatIf) -> str:
    """Return it as Markdown: the answer, then tables."""
    lines = [
        f"# shardtoll whatif: {cell(words.headline(answer))}",
        "",
        f"{cell(answer.run)}; {cell(_basis(answer))}.",
        "",
        *markdown_table.table(words.CHANGE_HEADS, words.change_rows(answer.changes)),
        "",
        *markdown_table.table(words.PARTS_HEADS, words.part_rows(answer)),
        "",
    ]
    for name, named in (("vanish", answer.vanished), ("appear", answer.appeared)):
        lines += [*(f"- {name}: {cell(line)}" for line in named)]
    lines += [
        "",
        f"## The critical path after ({cell(words.path_words(answer.path))})",
        "",
        *markdown_table.table(words.PATH_HEADS, words.path_rows(answer.path)),
        "",
        *(f"- {cell(line)}" for line in answer.notes),
    ]
    return "\n".join(lines) + "\n"
