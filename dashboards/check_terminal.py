"""What a run exceeds its budget by, on a terminal, by rich."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from shardtoll.dashboards import check_words as words
from shardtoll.dashboards.text import clip
from shardtoll.ledger.overrun import BudgetCheck, Overrun

_INDENT = (0, 0, 0, 3)


def show(check: BudgetCheck, width: int | None = None) -> None:
    """Print it; `width` in columns, by default the terminal's."""
    console = Console(width=width, highlight=False)
    console.print(renderable(check))


def renderable(check: BudgetCheck) -> RenderableType:
    """Return it for a terminal."""
    head = Text("shardtoll check", style="bold")
    head.append(f"  {clip(check.run, 200)} against {clip(check.budget, 200)}\n", style="not bold")
    head.append(words.headline(check), style="bold green" if check.passed else "bold red")
    parts: list[RenderableType] = [head]
    for one in check.overruns[: words.MOST_LINES]:
        parts += _overrun(one, excused=check.excused(one))
    if len(check.overruns) > words.MOST_LINES:
        parts.append(Text(f"\nand {len(check.overruns) - words.MOST_LINES:,} more: --json has all"))
    if check.warnings:
        parts.append(Text(""))
    for warning in check.warnings:
        parts.append(Text("warning: ", style="yellow").append(clip(warning, 600), style="default"))
    return Group(*parts)


def _overrun(one: Overrun, *, excused: bool) -> list[RenderableType]:
    head = Text("\n")
    head.append(one.answer, style="yellow" if excused or one.answer != "over" else "bold red")
    head.append(f"  {words.name(one)}", style="bold")
    body = Text(words.why(one), overflow="fold")
    body.append(f"\n{words.place(one)}", style="dim")
    for line in words.parts(one):
        body.append(f"\n{line}")
    return [head, Padding(body, _INDENT, expand=False)]
