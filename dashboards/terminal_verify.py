"""What became of findings, gradients and time between two runs, on a terminal, by rich."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards import verdict
from shardtoll.dashboards.text import clip
from shardtoll.ledger.verification import Judged, Verification

TABLE_WIDTH: Final = 72
"""Narrower terminals get the figures as lines."""
_STYLE: Final = {
    "gone": "bold green",
    "smaller": "yellow",
    "still there": "bold red",
    "cannot be told": "yellow",
}
_ANSWER: Final = {"equal": "bold green", "differ": "bold red", "unknown": "yellow"}
_KEPT: Final = {"kept": "bold green", "exceeded": "bold red", "longer": "bold red"}
_INDENT: Final = (0, 0, 0, 3)
_MOST: Final = 600


def show(verification: Verification, width: int | None = None) -> None:
    """Print it; `width` in columns, by default the terminal's."""
    console = Console(width=width, highlight=False)
    console.print(renderable(verification, console.width))


def renderable(verification: Verification, width: int) -> RenderableType:
    """Return it for a terminal of that width."""
    head = Text("shardtoll verify", style="bold")
    head.append(f"  {clip(verification.before, 200)} -> {clip(verification.after, 200)}\n", style="not bold")
    head.append(verdict.headline(verification), style="bold green" if verification.passed else "bold red")
    parts: list[RenderableType] = [head]
    for words in verification.warnings:
        parts.append(Text("not alike: ", style="yellow").append(clip(words, _MOST), style="default"))
    for one in verification.findings:
        parts += _finding(one)
    if verification.also:
        parts.append(Text(f"\n{verdict.ALSO}", style="bold"))
        parts += [Padding(Text(line, overflow="fold"), _INDENT) for line in verdict.also(verification)]
    parts += _gradients(verification)
    parts += _saving(verification, width)
    if verification.new:
        parts.append(Text("\nnew in the run after", style="bold"))
        parts += [Padding(Text(line), _INDENT) for line in verdict.new_findings(verification.new)]
    return Group(*parts)


def _finding(one: Judged) -> list[RenderableType]:
    head = Text(f"\n{one.number:>2} ")
    head.append(one.verdict, style=_STYLE[one.verdict])
    head.append(f" {one.finding.kind}")
    body = Text(overflow="fold")
    body.append(verdict.title(one), style="bold")
    body.append(f"\nwhere: {verdict.place(one.finding)}\n{clip(one.why, _MOST)}")
    if one.quantity is not None:
        name, was, now, by = verdict.figure(one.quantity)
        body.append(f"\n{name}: {was} -> {now} ({by})")
    body.append(f"\npredicted saving: {verdict.predicted(one)}")
    return [head, Padding(body, _INDENT, expand=False)]


def _gradients(verification: Verification) -> list[RenderableType]:
    found = verification.gradients
    text = Text("\n")
    wanted = found.change_expected and found.answer == "differ"
    text.append(verdict.gradients_words(found), style="bold green" if wanted else _ANSWER[found.answer])
    text.append(f": {clip(found.why, _MOST)}")
    return [text, *(Padding(Text(line, overflow="fold"), _INDENT) for line in verdict.differences(found))]


def _saving(verification: Verification, width: int) -> list[RenderableType]:
    saving = verification.saving
    text = Text("\n")
    text.append(f"saving {saving.kept}", style=_KEPT.get(saving.kept, "yellow"))
    text.append(f": {clip(saving.why, _MOST)}")
    text.append(f" ({saving.steps_before} steps before, {saving.steps_after} after)", style="dim")
    rows = verdict.figures(verification)
    if width < TABLE_WIDTH:
        return [text, *(Text(f"{name}: {was} -> {now} ({by})") for name, was, now, by in rows)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("per step")
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return [text, table]
