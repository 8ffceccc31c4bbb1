"""The ranked bill on a terminal: a table if it fits, otherwise one block of lines per finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards.facts import replayed_words, summary
from shardtoll.dashboards.facts.applies import NONE, applies
from shardtoll.dashboards.facts.first_screen import first_facts, together
from shardtoll.dashboards.terminal.coded import CODE_STYLE, coded
from shardtoll.dashboards.terminal.fitted import tight
from shardtoll.dashboards.terminal.verbatim import Verbatim
from shardtoll.dashboards.words.text import clean, clip, unbroken
from shardtoll.ledger import Finding, Report, Run
from shardtoll.ledger.words import human

TABLE_WIDTH: Final = 140
STYLE: Final = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_TITLE: Final = 400
_PLACE: Final = 200
_CODE_LINES: Final = 20
_PLACES_SHOWN: Final = 6
_LEFT: Final = 3
INDENT: Final = (0, 0, 0, _LEFT)
_SELF_EXPLAINING: Final = ("source", "phase", "place", "op")


def bill(report: Report, width: int) -> RenderableType:
    """Return the findings for a terminal of `width` columns."""
    if not report.findings:
        return Text("the bill: no findings")
    rows = list(enumerate(report.findings, start=1))
    counts = [
        human.plural(sum(finding.severity == severity for finding in report.findings), severity, several)
        for severity, several in (("error", "errors"), ("warning", "warnings"), ("info", "infos"))
    ]
    head = Text("the bill", style="bold")
    head.append(f" ({', '.join(counts)}); per step, each on the rank where it is largest", style="not bold")
    head.append(summary.base_of_tolls(report), style="not bold")
    for sentence in together.on_the_bill(report):
        head.append(f"\n{sentence}", style="not bold")
    if width < TABLE_WIDTH:
        return Group(head, *_overview(report, rows, width), *_blocks(rows, report.run))
    return Group(head, _table(rows, report.run, width), *_codes(rows))


def _kind(finding: Finding) -> Text:
    text = Text(finding.severity, style=STYLE[finding.severity])
    text.append(f" {finding.kind}", style="not dim default")
    if finding.confidence != "certain":
        text.append(f" ({finding.confidence})", style="default")
    return text


def _remedy(finding: Finding) -> Text:
    if finding.remedy is None:
        return Text("none known")
    text = coded(clip(finding.remedy.text, _TITLE))
    if finding.remedy.effort is not None:
        text.append(f"\neffort: {finding.remedy.effort}")
    if finding.saving_ns is not None and finding.remedy.counterfactual:
        against = clip(finding.remedy.counterfactual, _PLACE)
        text.append(
            f"\n{replayed_words.saves(finding)} {replayed_words.saving(finding)} against: ", style="dim"
        )
        text.append_text(coded(against, style="dim"))
    return text


def _code(finding: Finding) -> Verbatim | None:
    if finding.remedy is None or not finding.remedy.code:
        return None
    lines = clean(finding.remedy.code, lines=True).split("\n")
    shown = [clip(line, _PLACE) for line in lines[:_CODE_LINES]]
    if len(lines) > _CODE_LINES:
        shown.append(f"({len(lines) - _CODE_LINES} more lines are in the JSON file)")
    return Verbatim("\n".join(shown), CODE_STYLE, _LEFT)


def _place(finding: Finding, run: Run) -> str:
    parts = [
        clip(value if name in _SELF_EXPLAINING else f"{name} {value}", _PLACE)
        for name, value in summary.places(finding)
    ]
    some = summary.some_ranks(finding, run)
    return " · ".join(parts if some is None else [*parts, some])


def _occurrences(finding: Finding) -> list[str]:
    """Return the places of a finding that has several, as many as are worth their lines."""
    lines = [f"at {clip(line, _PLACE)}" for line in summary.occurrences(finding)]
    if len(lines) > _PLACES_SHOWN:
        more = len(lines) - _PLACES_SHOWN
        lines[_PLACES_SHOWN:] = [f"and at {human.plural(more, 'more place')} (-o out.json has all)"]
    return lines


def _saved(saving_ns: float | None) -> str:
    return "none" if saving_ns == 0 else human.duration(saving_ns)


def _numbers(finding: Finding) -> list[tuple[str, str]]:
    figures = {
        "bytes": (finding.bytes, human.size),
        "toll": (finding.toll_ns, human.duration),
        "floor": (finding.floor_ns, human.duration),
        "saving": (finding.remedy_saves_ns, _saved),
    }
    return [("count", human.number(finding.count))] + [
        (name, NONE if value is None and not applies(finding, name) else shown(value))
        for name, (value, shown) in figures.items()
    ]


def _figures(finding: Finding) -> Text:
    """Return a finding's cost and count as one line; nothing if that is only `once`."""
    numbers = [(name, value) for name, value in _numbers(finding) if value != NONE]
    (_, count), *costs = numbers
    line = Text()
    if finding.toll_ns is not None:
        line.append(f"per step: {human.often(finding.count)}")
    elif finding.count != 1:
        line.append(f"count {count}")
    for name, value in costs:
        # A size says what it is by its unit.
        named = "" if line and name == "bytes" and finding.bytes is not None else f"{name} "
        line.append(f"{', ' if line else ''}{named}")
        line.append(unbroken(value), style="bold" if name == "toll" else "default")
    return line


def _table(rows: Sequence[tuple[int, Finding]], run: Run, width: int) -> Table:
    names = [name for name, _ in _numbers(rows[0][1])]
    cells = [[value for _, value in _numbers(finding)] for _, finding in rows]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    # rich shares width out by `ratio` without looking at `min_width`, and crops what is then too wide.
    number_width = len(str(len(rows)))
    rest = width - number_width - sum(widths) - 3 * (len(widths) + 3)
    kinds = max(cell_len(f"{finding.severity} {finding.kind}") for _, finding in rows)
    kind = max(kinds, rest * 3 // 8)
    where = (rest - kind) * 2 // 5
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_lines=True)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("kind", overflow="fold", width=kind)
    table.add_column("where", overflow="fold", width=where)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("remedy", overflow="fold", width=rest - kind - where)
    for (number, finding), values in zip(rows, cells, strict=True):
        what = _kind(finding)
        what.append(f"\n{clip(finding.title, _TITLE)}", style="default")
        place = "\n".join((_place(finding, run), *_occurrences(finding)))
        table.add_row(str(number), what, Text(place), *values, _remedy(finding))
    return table


def _codes(rows: Sequence[tuple[int, Finding]]) -> list[RenderableType]:
    """Return each remedy's code once, under the numbers of its findings."""
    numbers: dict[str, list[int]] = {}
    for number, finding in rows:
        code = _code(finding)
        if code is not None:
            numbers.setdefault(code.plain, []).append(number)
    shown: list[RenderableType] = []
    for lines, of in numbers.items():
        shown += [Text(f"remedy of {human.runs(of)}:"), Verbatim(lines, CODE_STYLE, _LEFT)]
    return shown


def _overview(report: Report, rows: Sequence[tuple[int, Finding]], width: int) -> list[RenderableType]:
    """Return the findings with their tolls and savings one below the other; nothing of a single one."""
    if len(rows) < 2:
        return []
    cells = []
    for number, finding in rows:
        figures = dict(_numbers(finding))
        where = clean(first_facts.place(finding, report))
        costs = (figures[name] for name in ("toll", "saving"))
        cells.append((str(number), f"{finding.severity} {finding.kind}", clip(where, _PLACE), *costs))
    table = tight(("#", "finding", "where", "toll", "saving"), cells, width, words=(1, 2))
    return [] if table is None else [Text(), table]


def _blocks(rows: Sequence[tuple[int, Finding]], run: Run) -> list[RenderableType]:
    return [part for number, finding in rows for part in (Text(), *block(number, finding, run))]


def block(number: int, finding: Finding, run: Run) -> list[RenderableType]:
    """Return a finding as lines: kind, title, place, figures, remedy and code."""
    head = Text(f"{number:>2} ")
    head.append_text(_kind(finding))
    body = Text(overflow="fold")
    body.append(clip(finding.title, _TITLE), style="bold")
    body.append(f"\nwhere: {_place(finding, run)}\n")
    for line in _occurrences(finding):
        body.append(f"{line}\n")
    figures = _figures(finding)
    body.append_text(figures).append("\nremedy: " if figures else "remedy: ").append_text(_remedy(finding))
    code = _code(finding)
    parts: list[RenderableType] = [head, Padding(body, INDENT, expand=False)]
    return parts if code is None else [*parts, code]
