"""The middle of the first screen of a job that hangs: what its ranks wait for, and nothing on costs."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from shardtoll.dashboards.facts.first_screen import hung
from shardtoll.dashboards.terminal.coded import coded
from shardtoll.dashboards.terminal.lines import cut, wrapped
from shardtoll.dashboards.words.text import clean
from shardtoll.ledger import Finding, Report

_INDENT = "     "


def hang_lines(report: Report, finding: Finding, console: Console, width: int, most: int) -> list[Text]:
    """Return at most so many lines: each fact of the hang, its remedy, and the other errors' titles."""
    facts: list[list[Text]] = []
    for label, words in hung.told(finding):
        head = f"{label}: "
        room = max(width - len(_INDENT), 1)
        lines = wrapped([coded(clean(f"{head}{words}")).plain], console, room)
        lines[0].stylize("bold", 0, min(cell_len(head), len(lines[0])))
        first, *rest = lines
        facts.append([first, *(Text(f"{_INDENT}{each.plain}", no_wrap=True) for each in rest)])
    *others, remedy = facts if finding.remedy is not None else [*facts, []]
    for number, each in enumerate(report.findings, start=1):
        if each.severity == "error" and each is not finding:
            remedy.append(cut(Text(clean(f"Another error: {each.title} (finding {number})")), width))
    # The remedy stays longest.
    while others and sum(map(len, others)) + len(remedy) > most:
        others.pop()
    return [line for lines in (*others, remedy) for line in lines][: max(most, 1)]
