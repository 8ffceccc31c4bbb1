"""A run's overruns of its budget, on a terminal, by rich, and as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from shardtoll.dashboards.check import words
from shardtoll.dashboards.terminal.answers import head, indented, labelled
from shardtoll.dashboards.words.text import answer, clean, clip
from shardtoll.ledger.answers.overrun import BudgetCheck, Overrun


def renderable(check: BudgetCheck, _width: int = 0) -> RenderableType:
    """Return it for a terminal of any width."""
    subject = f"{clip(check.run, 200)} against {clip(check.budget, 200)}"
    parts: list[RenderableType] = [head("check", subject, words.headline(check), passed=check.passed)]
    for overrun, lines in words.shown_parts(check):
        parts += _overrun(overrun, lines, excused=check.excused(overrun))
    if len(check.overruns) > words.MOST_LINES:
        parts.append(Text(f"\nand {len(check.overruns) - words.MOST_LINES:,} more: --json has all"))
    if check.warnings:
        parts += [Text(""), *labelled("warning", check.warnings, 600)]
    return Group(*parts)


def _overrun(overrun: Overrun, lines: Sequence[str], *, excused: bool) -> list[RenderableType]:
    title = Text("\n")
    title.append(
        answer(overrun.answer), style="yellow" if excused or overrun.answer != "over" else "bold red"
    )
    title.append(f"  {words.name(overrun)}", style="bold")
    body = Text(words.why(overrun), overflow="fold")
    body.append(f"\n{words.place(overrun)}", style="dim")
    for line in lines:
        body.append(f"\n{line}")
    return [title, *indented([body], expand=False)]


def markdown(check: BudgetCheck) -> str:
    """Return it as Markdown: a table of the overruns, and the parts of each figure."""
    lines = [
        f"# shardtoll check: {'passed' if check.passed else 'not passed'}",
        "",
        f"{_cell(check.run)} against {_cell(check.budget)}. {_cell(words.headline(check))}.",
        "",
    ]
    shown = words.shown_parts(check)
    if shown:
        lines += ["| answer | limit | why | where |", "| --- | --- | --- | --- |"]
        for overrun, _ in shown:
            row = (answer(overrun.answer), words.name(overrun), words.why(overrun), words.place(overrun))
            lines.append("| " + " | ".join(map(_cell, row)) + " |")
        if len(check.overruns) > len(shown):
            lines.append(f"\nand {len(check.overruns) - len(shown):,} more")
        lines.append("")
    for overrun, parts in shown:
        if parts:
            lines += [f"{_cell(words.name(overrun))}:", "", *(f"- {_cell(part)}" for part in parts), ""]
    lines += [f"- warning: {_cell(warning)}" for warning in check.warnings]
    return "\n".join(lines).rstrip("\n") + "\n"


def _cell(text: str) -> str:
    """Return text that Markdown shows as it is: names come from users' programs."""
    shown = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return "".join(f"\\{char}" if char in "`*[]_~" else char for char in shown)
