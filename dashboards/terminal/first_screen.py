"""The first screen of a report: the verdict, the run, the step as bars, five findings, where to read on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from shardtoll.dashboards.facts import first_facts, summary, together, under_bars
from shardtoll.dashboards.facts.drawn import words
from shardtoll.dashboards.facts.first_facts import Bar
from shardtoll.dashboards.facts.first_rows import LEAST_SHARE, Row, largest_toll, worth_showing
from shardtoll.dashboards.facts.legend import legend as meaning_of_figures
from shardtoll.dashboards.facts.legend import words as words_meaning
from shardtoll.dashboards.terminal.coded import coded
from shardtoll.dashboards.terminal.terminal_bill import STYLE
from shardtoll.dashboards.words.text import clean
from shardtoll.ledger import Report
from shardtoll.ledger.words import human

LINES: Final = 24
"""A terminal as it opens; the line that says how to see more is within them."""

LEAST_VERDICT: Final = 2
MOST_VERDICT: Final = 4
"""Lines that the verdict takes before the last finding: its end says what to do."""
_BLOCKS: Final = "█▞▓▚▒░·"
_ASCII: Final = "#:=%+-."
"""One mark for each of `DRAWN`."""
_COLOURS: Final = ("green", "yellow", "red", "red", "magenta", "blue", "dim")
_LEAST_PLACES: Final = (24, 14, 14)
"""Columns for a finding's place, before a figure is left to `--finding`: the floor goes first, and the toll
where a file's name and its line have no room."""
_INDENT: Final = 5 * " "
_UNIT: Final = re.compile(r"(?<=\d) (?=%|(?:[nµm]?s|[kMGT]?B)\b)")
_UNBROKEN: Final = "\ue000"
"""Stands for a space while lines are broken: rich ends lines at every kind of space."""
_LEAST_BAR: Final = 10
_MOST_BAR: Final = 30
_PLAIN: Final = str.maketrans({"·": "|", "×": "x", "µ": "u", "±": "~", "–": "-", "…": "~", "\u00a0": " "})


class FirstScreen:
    """A rich renderable of at most `LINES` lines; `more` says how to see the rest."""

    def __init__(self, report: Report, more: Iterable[str] = ()) -> None:
        self.report = report
        self.more = tuple(more)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = Group(*self._lines(console, options.max_width, plain=options.ascii_only))
        for segment in console.render(lines, options):
            yield segment._replace(text=_plain(segment.text)) if options.ascii_only else segment

    def _lines(self, console: Console, width: int, *, plain: bool) -> list[Text]:
        report, missing = self.report, self.report.run.ranks_missing
        lines = [_cut(Text(first_facts.run_line(report, width), style="dim"), width)]
        if missing:
            text = f"{human.ranks(missing)} of {report.run.world_size:,} left no records"
            lines.append(_cut(Text(text, style="bold red"), width))
        lines += [Text(), *_steps(report, console, width, _ASCII if plain else _BLOCKS)]
        lines += [*_wrapped(under_bars.sentences(report), console, width), Text()]
        verdict = _verdict(report, console, width)
        end = self._end(console, width, len(report.findings))
        kept = min(max(len(verdict), LEAST_VERDICT), MOST_VERDICT)
        room = LINES - kept - len(lines) - len(end)
        bill, left_out = _bill(report, console, width, room)
        end = self._end(console, width, left_out)
        # A finding is worth more than an empty line.
        lines += [*bill, *([Text()] if end and len(bill) < room else []), *end]
        left = max(LINES - len(lines), LEAST_VERDICT)
        if len(verdict) > left:
            verdict = [*verdict[: left - 1], _ended(verdict[left - 1], width)]
        return [*(Text(line, style="bold", no_wrap=True) for line in verdict), *lines]

    def _end(self, console: Console, width: int, left_out: int) -> list[Text]:
        """Return how to see the rest, with the number of findings that have no row."""
        more = f"{human.plural(left_out, 'more finding')}: "
        sentences = [re.sub(r"^More: ", more, each) if left_out else each for each in self.more]
        return [line for sentence in sentences for line in Text(clean(sentence)).wrap(console, width)]


def _wrapped(sentences: Iterable[str], console: Console, width: int, style: str = "") -> list[Text]:
    """Return sentences in whole lines: one that is cut has to be guessed."""
    lines = []
    for sentence in sentences:
        held = Text(_UNIT.sub(_UNBROKEN, clean(sentence))).wrap(console, width)
        lines += [Text(_freed(line.plain), style=style) for line in held]
    return lines


def _freed(line: str) -> str:
    """Return a line that ends where it was broken, with the spaces that were held."""
    return line.replace(_UNBROKEN, " ").rstrip()


def _verdict(report: Report, console: Console, width: int) -> list[str]:
    """Return the verdict in lines; none of them ends between a number and its unit."""
    whole = _UNIT.sub(_UNBROKEN, coded(clean(report.verdict)).plain)
    return [_freed(line.plain) for line in Text(whole).wrap(console, width)]


def _plain(text: str) -> str:
    return text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")


def _ended(line: str, width: int) -> str:
    """Return the line with a mark at its end, which says that there is more."""
    while line and cell_len(line) >= width:
        line = line.rpartition(" ")[0]
    return f"{line}…"


def _cut(line: Text, width: int) -> Text:
    """Return the line without what has no glyph, cut at the width where a mark stands."""
    text = clean(line.plain)
    if cell_len(text) > width:
        text = set_cell_size(text, max(width - 1, 0)).rstrip() + "…"
    return Text(text, style=line.style, no_wrap=True)


def _steps(report: Report, console: Console, width: int, marks: str) -> list[Text]:
    bars = first_facts.bars(report)
    if not bars:
        return [_cut(Text("no step finished, so there is no step time to divide"), width)]
    drawn = {
        place for bar in bars for place, part_ns in bar.parts if part_ns >= LEAST_SHARE * bar.total_ns > 0
    }
    brief, whole = (
        "  ".join(f"{marks[place]} {words(place, split=bars[0].split)[which]}" for place in sorted(drawn))
        for which in (0, 1)
    )
    # What a mark stands for is needed more than how the parts were divided.
    legends = (
        f"step, {summary.mean_of(report)}: {whole}",
        f"{summary.mean_of(report, brief=True)}: {whole}",
        f"{summary.mean_of(report, brief=True)}: {brief}",
    )
    legend = [next((each for each in legends if cell_len(each) <= width), "")]
    if not legend[0]:
        # Each mark stays with its words.
        held = brief.replace("  ", "\n").replace(" ", _UNBROKEN).replace("\n", "  ")
        lines = Text(held).wrap(console, width)
        legend = [summary.mean_of(report, brief=True), *(_freed(line.plain) for line in lines)]
    names = max(cell_len(bar.name) for bar in bars)
    totals = max(cell_len(human.duration(bar.total_ns)) for bar in bars)
    room = min(_MOST_BAR, max(_LEAST_BAR, (width - names - totals - 4) // 4))
    longest = max(bar.total_ns for bar in bars)
    meaning = words_meaning(report, drawn, width)
    return [
        *(_cut(Text(line, style="dim"), width) for line in legend),
        *(_bar(bar, names, totals, room, longest, width, marks) for bar in bars),
        *([] if meaning is None else [_cut(Text(meaning, style="dim"), width)]),
    ]


def _bar(bar: Bar, names: int, totals: int, room: int, longest: float, width: int, marks: str) -> Text:
    line = Text(f"{set_cell_size(bar.name, names)} {human.duration(bar.total_ns):>{totals}} ", no_wrap=True)
    drawn = 0
    until = 0.0
    for place, part_ns in bar.parts:
        until += part_ns
        if part_ns < LEAST_SHARE * bar.total_ns:
            # The part beside it takes its cell: a colour that no share explains is a riddle.
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


def _bill(report: Report, console: Console, width: int, most: int) -> tuple[list[Text], int]:
    """Return what figures mean, the findings and what links them; and how many findings have no row.

    There are as many rows as `most` lines hold, but always one; the largest toll stays longest.
    """
    if not report.findings:
        return _wrapped([f"no findings; checked: {summary.checked(report)}"], console, width), 0
    shown = worth_showing(report)
    largest, error = largest_toll(report.findings), summary.parts_error_ns(report)
    while True:
        names: set[str] = set()
        lines = [line for row in shown for line in _finding(report, row, console, width, names, error)]
        meaning = meaning_of_figures(report, [row.finding for row in shown], names, width)
        if meaning is not None:
            lines.insert(0, _cut(Text(meaning, style="dim"), width))
        linked = together.on_one_screen(report, [row.number for row in shown])
        lines += _wrapped(linked, console, width, "bold")
        if len(lines) <= most or len(shown) == 1:
            return lines, len(report.findings) - sum(len(row.numbers) for row in shown)
        shown.pop(-2 if len(shown) > 2 and shown[-1].number == largest else -1)


def _finding(
    report: Report, row: Row, console: Console, width: int, names: set[str], error_ns: float | None
) -> list[Text]:
    """Return the lines of a row; the figures that they show are added to `names`."""
    finding = row.finding
    head = f"{row.number:>2} {finding.severity} {finding.kind}"
    where = clean(row.place or first_facts.place(finding, report))
    texts = zip(first_facts.figures(finding, error_ns), first_facts.figure_names(finding), strict=True)
    for least, (figures, shown) in zip(_LEAST_PLACES, texts, strict=False):
        room = width - cell_len(head) - cell_len(figures) - 4
        named = shown
        if room >= min(least, cell_len(where)):
            break
    names.update(named)
    if cell_len(where) > room:
        # The line of code says more than the function that it is in.
        where = where if row.place else re.sub(r" \([^()]*\)(?=$|, ranks? )", "", where)
    place = where
    if cell_len(where) > room:
        # A path tells most at its end, a list of parameters at its beginning.
        kept = max(room - 1, 0)
        place = f"{where[:kept]}…" if row.place else "…" + where[len(where) - kept :]
    whole = "  ".join(part for part in (head, place, figures) if part)
    line = _cut(Text(whole), width)
    line.stylize(STYLE[finding.severity], 3, 3 + len(finding.severity))
    clause = first_facts.remedy(finding, min(first_facts.CLAUSE, width - len(_INDENT)))
    told = _wrapped([coded(clause).plain], console, max(width - len(_INDENT), 1))
    return [line, *(Text(f"{_INDENT}{each.plain}", no_wrap=True) for each in told)]
