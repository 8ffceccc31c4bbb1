"""The step summary on a terminal: each rank's mean step, whose parts add up to its total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.dashboards.facts.first_screen import first_facts
from shardtoll.dashboards.facts.step_times import PARTS, RankTime
from shardtoll.dashboards.terminal.fitted import width_of
from shardtoll.dashboards.words.text import unbroken
from shardtoll.ledger import Report
from shardtoll.ledger.words import human

RANKS_SHOWN: Final = 8
Marks: TypeAlias = Mapping[tuple[int, ...], str]
_HEADS: Final = {
    "exposed_comm_ns": "exposed\ncomm",
    "exposed_copy_ns": "exposed\ncopies",
    "unattributed_ns": "unattri-\nbuted",
}


def steps(report: Report, width: int) -> RenderableType:
    """Return the step summary for a terminal of `width` columns."""
    times = step_times.rank_times(report)
    if not times:
        return Text("step: no step finished, so its time cannot be divided")
    shown, rest = step_times.fold(times, RANKS_SHOWN)
    marks = first_facts.marks_of(report, times)
    head = Text("the step", style="bold")
    head.append(f", {summary.mean_of(report)}", style="not bold")
    late = list(marks.values()).count("late")
    if late:
        head.append(f"; {_waiting(late, report.run.world_size - late)}", style="not bold")
    if rest is not None:
        slow = f"; the {len(shown)} slowest of {len(times)} ranks"
        head.append(f"{slow}, the other {len(rest.ranks)} folded into their mean", style="not bold")
    rows = [*shown, rest] if rest is not None else shown
    table = _table(rows, marks)
    parts = [head, table if width_of(table) <= width else _stacked(rows, marks)]
    recording = summary.recording(report)
    return Group(*parts, *([] if recording is None else [Text(recording, style="dim")]))


def _waiting(late: int, others: int) -> str:
    """Return who waits for so many late ranks; the others of the job may have left no records."""
    if not others:
        return "the ranks wait for each other"
    return f"{human.others(others, 'wait')} for the late {'rank' if late == 1 else 'ranks'}"


def _name(time: RankTime, marks: Marks) -> Text:
    text = Text(f"rank {time.ranks[0]}" if len(time.ranks) == 1 else f"mean of {len(time.ranks)}")
    if time.ranks in marks:
        text.append(f" {marks[time.ranks]}", style="bold yellow")
    return text


def _table(rows: Sequence[RankTime], marks: Marks) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name, words in PARTS:
        table.add_column(_HEADS.get(name, words), justify="right", no_wrap=True)
    whole = any(time.recorded_whole for time in rows)
    if whole:
        table.add_column("of which\ncapture", justify="right", no_wrap=True, style="dim")
    table.add_column("total", justify="right", no_wrap=True, style="bold")
    mixed = step_times.mixed(rows)
    if mixed:
        table.add_column("watched:\nexp. comm", justify="right", no_wrap=True)
        table.add_column("\nstep", justify="right", no_wrap=True, style="bold")
    for time in rows:
        values = [*time.parts_ns, *([time.capture_ns] if whole else []), time.total_ns]
        if mixed:
            values += [time.watched_comm_ns, time.watched_ns]
        table.add_row(_name(time, marks), *map(human.duration, values))
    return table


def _stacked(rows: Sequence[RankTime], marks: Marks) -> Group:
    lines = []
    for time in rows:
        line = Text()
        line.append_text(_name(time, marks)).append(": ")
        line.append(human.duration(time.total_ns), style="bold")
        named = zip(PARTS, time.parts_ns, strict=True)
        sums = " + ".join(f"{words} {unbroken(human.duration(part))}" for (_, words), part in named)
        line.append(f"\n= {sums}")
        if time.recorded_whole:
            line.append(f" (of which capture {unbroken(human.duration(time.capture_ns))})")
        if step_times.mixed(rows):
            took, comm = (human.duration(value) for value in (time.watched_ns, time.watched_comm_ns))
            line.append(f"\nwatched steps: {unbroken(took)}, exposed comm {unbroken(comm)} of it")
        lines.append(line)
    return Group(*lines)
