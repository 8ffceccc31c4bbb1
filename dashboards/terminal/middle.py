"""The middle of the first screen: bars of ranks that stand out, or what ranks of a hanging job wait for."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from shardtoll.dashboards.facts import summary
from shardtoll.dashboards.facts.first_screen import first_facts, hung
from shardtoll.dashboards.facts.first_screen.drawn import words
from shardtoll.dashboards.facts.first_screen.first_facts import Bar
from shardtoll.dashboards.facts.first_screen.first_rows import LEAST_SHARE
from shardtoll.dashboards.facts.first_screen.legend import words as words_meaning
from shardtoll.dashboards.terminal.coded import coded
from shardtoll.dashboards.terminal.lines import cut, in_parts, wrapped
from shardtoll.dashboards.words.text import clean
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.words import human

BLOCKS: Final = "█▞▓▚▒░·"

ASCII: Final = "#:=%+-."
"""One mark for each of `DRAWN`."""

_COLOURS: Final = ("green", "yellow", "red", "red", "magenta", "blue", "dim")

_LEAST_BAR: Final = 10

_MOST_BAR: Final = 30

_INDENT = "     "


def steps(report: Report, console: Console, width: int, marks: str) -> list[Text]:
    """Return the legend, a bar for each rank that stands out, and the meaning of the words at the bars."""
    bars = first_facts.bars(report)
    if not bars:
        return [cut(Text("no step finished, so there is no step time to divide"), width)]
    drawn = {
        place for bar in bars for place, part_ns in bar.parts if part_ns >= LEAST_SHARE * bar.total_ns > 0
    }
    brief, whole = (
        [f"{marks[place]} {words(place, split=bars[0].split)[which]}" for place in sorted(drawn)]
        for which in (0, 1)
    )
    # The meaning of a mark is needed more than how the parts were divided.
    legends = (
        f"step, {summary.mean_of(report)}: {'  '.join(whole)}",
        f"{summary.mean_of(report, brief=True)}: {'  '.join(whole)}",
        f"{summary.mean_of(report, brief=True)}: {'  '.join(brief)}",
    )
    legend = [next((each for each in legends if cell_len(each) <= width), "")]
    if not legend[0]:
        legend = [summary.mean_of(report, brief=True), *in_parts(brief, console, width)]
    names = max(cell_len(bar.name) for bar in bars)
    totals = max(cell_len(human.duration(bar.total_ns)) for bar in bars)
    room = min(_MOST_BAR, max(_LEAST_BAR, (width - names - totals - 4) // 4))
    longest = max(bar.total_ns for bar in bars)
    meaning = words_meaning(report, drawn, width)
    return [
        *(cut(Text(line, style="dim"), width) for line in legend),
        *(_bar(bar, names, totals, room, longest, width, marks) for bar in bars),
        *([] if meaning is None else [cut(Text(meaning, style="dim"), width)]),
    ]


def _bar(bar: Bar, names: int, totals: int, room: int, longest: float, width: int, marks: str) -> Text:
    line = Text(f"{set_cell_size(bar.name, names)} {human.duration(bar.total_ns):>{totals}} ", no_wrap=True)
    drawn = 0
    until = 0.0
    for place, part_ns in bar.parts:
        until += part_ns
        if part_ns < LEAST_SHARE * bar.total_ns:
            # The neighbouring part takes its cell: a colour that no share explains is a riddle.
            continue
        cells = round(room * until / longest) - drawn if longest else 0
        line.append(marks[place] * cells, style=_COLOURS[place])
        drawn += cells
    line.append(" " * (room - drawn))
    words = " "
    for share in bar.shares or (f"parts {human.UNKNOWN}",):
        longer = f"{words}{' · ' if words.strip() else ''}{share}"
        if cell_len(line.plain) + cell_len(longer) > width:
            # Parts that take less have no room; the step table has them.
            break
        words = longer
    line.append(words.rstrip())
    line.truncate(width)
    return line


def hang_lines(report: Report, finding: Finding, console: Console, width: int, most: int) -> list[Text]:
    """Return at most so many lines: each fact of the hang, its remedy, and the other errors' titles."""
    facts: list[list[Text]] = []
    for label, meaning in hung.told(finding):
        head = f"{label}: "
        room = max(width - len(_INDENT), 1)
        lines = wrapped([coded(clean(f"{head}{meaning}")).plain], console, room)
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
