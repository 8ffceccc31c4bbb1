"""The bill on a terminal, by rich: wide ones get tables, narrow ones stacked lines, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from shardtoll.dashboards.facts import replayed_words as words
from shardtoll.dashboards.facts import summary
from shardtoll.dashboards.facts.first_screen import under_bars
from shardtoll.dashboards.terminal.answers import table
from shardtoll.dashboards.terminal.coded import coded
from shardtoll.dashboards.terminal.screen import Screen
from shardtoll.dashboards.terminal.steps import steps
from shardtoll.dashboards.terminal.table_sections import hta, late, traffic
from shardtoll.dashboards.terminal.terminal_bill import bill
from shardtoll.dashboards.terminal.terminal_roofline import roofline
from shardtoll.dashboards.words.mesh_words import mesh_words
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Report
from shardtoll.ledger.answers.what_if import WITHOUT_CAPTURE
from shardtoll.ledger.report.report import SHOW
from shardtoll.ledger.words import human

NOTICES_SHOWN: Final = 12


@SHOW.entry
def show(report: Report, width: int | None = None) -> None:
    """Print the report; `width` in columns, by default the terminal's (80 if there is none)."""
    Screen(width).print(renderable(report))


def renderable(report: Report) -> RenderableType:
    """Return the report as a rich renderable that fits whatever width it is given."""
    return _Fitted(report)


class _Fitted(Struct, frozen=True):
    report: Report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield Group(
            _header(self.report),
            Text(),
            steps(self.report, width),
            *roofline(self.report),
            Text(),
            bill(self.report, width),
            *_path(self.report, width),
            *_sound_checks(self.report),
            *traffic(self.report, width),
            *late(self.report, width),
            *hta(self.report, width),
            *_notices(self.report),
        )


class Sections:
    """Some sections of the report, by their names in `SECTIONS`; one that has nothing to show says so."""

    def __init__(self, report: Report, names: Sequence[str]) -> None:
        self.report = report
        self.names = names

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for name in self.names:
            yield from SECTIONS[name](self.report, options.max_width) or [Text(f"{name}: nothing on record")]


def _header(report: Report) -> Text:
    run = report.run
    text = Text()
    text.append("shardtoll", style="bold")
    seen = f"{len(run.ranks_seen)} of {human.plural(run.world_size, 'rank')} seen"
    text.append(f"  {summary.forecast_of(run) or seen}")
    for name, value in (("backend", run.backend), ("device", run.device), ("torch", run.torch)):
        text.append(f" · {name} {human.UNKNOWN if value is None else clip(value, 60)}")
    if mesh := mesh_words(run):
        text.append(f" · {mesh}")
    if len(run.hosts) > 1:
        text.append(f" · {len(run.hosts)} hosts")
    text.append(f" · {run.source}")
    levels = summary.levels(report)
    if levels:
        text.append(f" · {levels}")
    text.append(
        f"\nfabric {clip(report.fabric.name, 60)}: {clip(report.fabric.provenance, 900)}", style="dim"
    )
    if run.ranks_missing:
        text.append("\nmissing: ", style="bold red")
        text.append(f"{human.ranks(run.ranks_missing)} left no records")
    text.append("\n")
    text.append(clip(report.verdict, 900), style="bold")
    for line in under_bars.below_verdict(report):
        text.append(f"\n{line}")
    return text


def _path(report: Report, width: int) -> list[RenderableType]:
    lines = path(report, width)
    return [Text(), *lines] if lines else []


def _sound_checks(report: Report) -> list[RenderableType]:
    lines = [line for line in (summary.sound_checks(report), summary.values_unasked(report)) if line]
    return [Text(), *(coded(line) for line in lines)] if lines else []


def _notices(report: Report) -> list[RenderableType]:
    notices = summary.notices(report)
    lines: list[RenderableType] = [Text()] if notices else []
    for kind, text in notices[:NOTICES_SHOWN]:
        line = Text("notice ", style="yellow")
        line.append_text(coded(f"{clip(kind, 40)}: {clip(text, 400)}", style="default"))
        lines.append(line)
    if len(notices) > NOTICES_SHOWN:
        lines.append(Text(f"{len(notices) - NOTICES_SHOWN} more notices are in the JSON file (-o out.json)"))
    return lines


def path(report: Report, _: int) -> list[RenderableType]:
    """Return the section's lines; empty if nothing was replayed."""
    seen = report.foreseen
    if seen is None or not seen.path.parts:
        return []
    head = Text("the critical path of the job", style="bold")
    head.append(f" ({words.path_words(seen.path)})", style="not bold")
    lines: list[RenderableType] = [head, table(words.PATH_HEADS, words.path_rows(seen.path))]
    if seen.changes:
        last = seen.changes[-1]
        floor = (
            ""
            if seen.floor_ns is None
            else f"; with collectives at their floor {human.duration(seen.floor_ns)}"
        )
        lines.append(
            Text(
                f"with {human.plural(len(seen.changes), 'finding')} fixed the step takes "
                f"{human.duration(last.step_ns)} in place of {human.duration(seen.before.step_ns)}{floor}"
            )
        )
    if seen.without_capture:
        lines.append(Text(WITHOUT_CAPTURE))
    basis = words.basis(seen.source, len(seen.steps), seen.nodes, seen.replay_error, seen.unknown_share)
    return [*lines, Text(basis, style="dim")]


SECTIONS: Final[dict[str, Callable[[Report, int], Sequence[RenderableType]]]] = {
    "steps": lambda report, width: [steps(report, width)],
    "hardware": lambda report, _: roofline(report),
    "bill": lambda report, width: [bill(report, width)],
    "path": path,
    "traffic": traffic,
    "late": late,
    "hta": hta,
    "notices": lambda report, _: _notices(report),
}
"""Name -> the lines of a section for a terminal of so many columns."""
