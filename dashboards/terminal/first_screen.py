"""The first screen of a report: the verdict, the run, the step as bars, five findings, where to read on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from shardtoll.dashboards.facts import summary
from shardtoll.dashboards.facts.first_screen import first_facts, hung, together, under_bars
from shardtoll.dashboards.facts.first_screen.first_rows import Row, largest_toll, worth_showing
from shardtoll.dashboards.facts.first_screen.legend import legend
from shardtoll.dashboards.terminal.coded import coded
from shardtoll.dashboards.terminal.lines import broken, cut, wrapped
from shardtoll.dashboards.terminal.middle import ASCII, BLOCKS, hang_lines, steps
from shardtoll.dashboards.terminal.terminal_bill import STYLE
from shardtoll.dashboards.terminal.verbatim import Verbatim
from shardtoll.dashboards.words.text import clean
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.words import human

LINES: Final = 24
"""A terminal as it opens; the line that says how to see more is within them."""

LEAST_VERDICT: Final = 2
MOST_VERDICT: Final = 4
"""Lines that the verdict takes before the last finding: its end says what to do."""
MOST_HANG: Final = 8
"""The same of a job that hangs: there is little else to say."""
_LEAST_PLACES: Final = (30, 14, 14)
"""Columns for a finding's place, before a figure is left to `--finding`. The floor goes first, then the toll
if a file's name and its line have no room."""
_INDENT: Final = 5 * " "
_MOST_RUNS: Final = 3
"""Commas up to which findings without a row are named by their numbers."""
_PLAIN: Final = str.maketrans({"·": "|", "×": "x", "µ": "u", "±": "~", "–": "-", "…": "~", "\u00a0": " "})


More: TypeAlias = tuple[str, str, str]
"""A line on how to see the rest: words, a command, and in brackets what else there is, which may be empty."""


class FirstScreen:
    """A rich renderable of at most `LINES` lines; `more` says how to see the rest: `More` entries."""

    def __init__(self, report: Report, more: Iterable[More] = ()) -> None:
        self.report = report
        self.more = tuple(more)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = Group(*self._lines(console, options.max_width, plain=options.ascii_only))
        for segment in console.render(lines, options):
            yield segment._replace(text=_plain(segment.text)) if options.ascii_only else segment

    def _lines(self, console: Console, width: int, *, plain: bool) -> list[Text | Verbatim]:
        report, missing = self.report, self.report.run.ranks_missing
        lines: list[Text | Verbatim] = [cut(Text(first_facts.run_line(report, width), style="dim"), width)]
        if missing:
            text = f"{human.ranks(missing)} of {report.run.world_size:,} left no records"
            lines.append(cut(Text(text, style="bold red"), width))
        unmarked = summary.no_marks(report)
        if unmarked is not None:
            lines += [Text(line.plain, style="bold yellow") for line in wrapped([unmarked], console, width)]
        verdict = _verdict(report, console, width)
        hang = hung.hang_of(report)
        if hang is not None:
            return [
                *_bold(verdict[:MOST_HANG]),
                *lines,
                *self._of_hang(hang, verdict, len(lines), console, width),
            ]
        lines += [Text(), *steps(report, console, width, ASCII if plain else BLOCKS)]
        lines += [*wrapped(under_bars.sentences(report), console, width), Text()]
        end = self._end(width, self._left_out(range(1, len(report.findings) + 1)))
        kept = min(max(len(verdict), LEAST_VERDICT), MOST_VERDICT)
        room = LINES - kept - len(lines) - _rows(end, width)
        bill, left_out = _bill(report, console, width, room)
        end = self._end(width, self._left_out(left_out))
        # A finding is worth more than an empty line.
        lines += [*bill, *([Text()] if end and len(bill) < room else []), *end]
        unasked = summary.values_unasked_in_a_line(report, width)
        if unasked is not None and _rows(lines, width) + min(len(verdict), MOST_VERDICT) < LINES:
            lines.insert(len(lines) - len(end), cut(Text(unasked), width))
        left = max(LINES - _rows(lines, width), LEAST_VERDICT)
        if len(verdict) > left:
            verdict = [*verdict[: left - 1], _ended(verdict[left - 1], width)]
        return [*_bold(verdict), *lines]

    def _of_hang(
        self, hang: Finding, verdict: list[str], above: int, console: Console, width: int
    ) -> list[Text | Verbatim]:
        """Return what stands below the run's line of a job that hangs: no cost of its steps."""
        costs = hung.costs(self.report)
        # Without other findings there is only a page to point to.
        end = self._end(width, costs, most=1)
        room = LINES - min(len(verdict), MOST_HANG) - above - _rows(end, width) - 2
        facts = hang_lines(self.report, hang, console, width, room)
        return [Text(), *facts, *([Text(), *end] if end else [])]

    @staticmethod
    def _left_out(numbers: Sequence[int]) -> str | None:
        """Return which findings have no row: people look for numbers that are left out."""
        if not numbers:
            return None
        named = human.runs(numbers)
        if named.count(",") > _MOST_RUNS:
            return human.plural(len(numbers), "more finding")
        return f"Also {'finding' if len(numbers) == 1 else 'findings'} {named}"

    def _end(self, width: int, rest: str | None, most: int | None = None) -> list[Text | Verbatim]:
        """Return how to see the rest, of which `rest` says what it is; `most`: how many entries to show.

        A command that is too long to follow its words has a line of its own, which is never broken.
        """
        lines: list[Text | Verbatim] = []
        for each in self.more[:most]:
            words, command, also = (clean(part) for part in each)
            words = rest if rest and words == "More" else words
            whole = f"{words}: {command} ({also})" if also else f"{words}: {command}"
            if cell_len(whole) <= width:
                lines.append(Text(whole))
                continue
            head = f"{words} ({also}):" if also else f"{words}:"
            # A hint that is cut in its middle helps nobody.
            head = head if cell_len(head) <= width else f"{words}:"
            lines += [cut(Text(head), width), Verbatim(command)]
        return lines


def _rows(lines: Sequence[Text | Verbatim], width: int) -> int:
    """Return how many rows of the terminal the lines take."""
    return sum(max(1, -(-cell_len(line.plain) // width)) for line in lines)


def _bold(lines: Iterable[str]) -> list[Text]:
    return [Text(line, style="bold", no_wrap=True) for line in lines]


def _verdict(report: Report, console: Console, width: int) -> list[str]:
    """Return the verdict in lines; none of them ends between a number and its unit."""
    return broken(coded(clean(report.verdict)).plain, console, width)


def _plain(text: str) -> str:
    return text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")


def _ended(line: str, width: int) -> str:
    """Return the line with a mark at its end, which says that there is more."""
    while line and cell_len(line) >= width:
        line = line.rpartition(" ")[0]
    return f"{line}…"


def _bill(report: Report, console: Console, width: int, most: int) -> tuple[list[Text], list[int]]:
    """Return what figures mean, the findings and what links them; and the numbers of findings without a row.

    There are as many rows as `most` lines hold, but always one; the largest toll stays longest.
    """
    if not report.findings:
        return wrapped([summary.nothing_found(report)], console, width), []
    shown = worth_showing(report)
    largest, error = largest_toll(report.findings), summary.parts_error_ns(report)
    while True:
        names: set[str] = set()
        lines = [line for row in shown for line in _finding(report, row, console, width, names, error)]
        meaning = legend(report, [row.finding for row in shown], names, width)
        if meaning is not None:
            lines.insert(0, cut(Text(meaning, style="dim"), width))
        linked = together.on_one_screen(report, [row.number for row in shown])
        lines += wrapped(linked, console, width, "bold")
        if len(lines) <= most or len(shown) == 1:
            seen = {number for row in shown for number in row.numbers}
            return lines, [each for each in range(1, len(report.findings) + 1) if each not in seen]
        shown.pop(-2 if len(shown) > 2 and shown[-1].number == largest else -1)


def _finding(
    report: Report, row: Row, console: Console, width: int, names: set[str], error_ns: float | None
) -> list[Text]:
    """Return the lines of a row; the figures that they show are added to `names`."""
    finding = row.finding
    head = f"{row.number:>2} {finding.severity} {finding.kind}"
    where = clean(row.place or first_facts.place(finding, report))
    saved = first_facts.saved_with(report, row.number)
    texts = zip(
        first_facts.figures(finding, error_ns, saved),
        first_facts.figure_names(finding, error_ns),
        strict=True,
    )
    for least, (figures, shown) in zip(_LEAST_PLACES, texts, strict=False):
        room = width - cell_len(head) - cell_len(figures) - 4
        named = shown
        if room >= min(least, cell_len(where)):
            break
    names.update(named)
    if cell_len(where) > room:
        # The line of code says more than the function that it is in.
        where = where if row.place else re.sub(r" \([^()]*\)(?=$|, ranks? )", "", where)
    if cell_len(where) > room and not row.place and not finding.where.source:
        # Who it is says more than the phase.
        where = where.partition(", ")[2] or where
    place = where
    if cell_len(where) > room:
        # The end of a path is its most specific part, that of a list of parameters its beginning.
        kept = max(room - 1, 0)
        place = f"{where[:kept]}…" if row.place else "…" + where[len(where) - kept :]
    whole = "  ".join(part for part in (head, place, figures) if part)
    line = cut(Text(whole), width)
    line.stylize(STYLE[finding.severity], 3, 3 + len(finding.severity))
    clause = first_facts.remedy(finding, min(first_facts.CLAUSE, width - len(_INDENT)))
    more = first_facts.more_like(row)
    clause = coded(clause).plain if more is None else f"{coded(clause).plain}; {more}"
    told = wrapped([clause], console, max(width - len(_INDENT), 1))
    return [line, *(Text(f"{_INDENT}{each.plain}", no_wrap=True) for each in told)]
