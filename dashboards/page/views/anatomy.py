"""Figure: where each rank's step goes, as stacked bars that add up to its duration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.dashboards.page.html.figure import PALETTE, TOP_LEGEND, Figure, Marks, bars, height, hover, ms
from shardtoll.ledger import KINDS, Report
from shardtoll.ledger.words import human

LEAD: Final = (
    "The mean step of each rank; its parts add up to it. Exposed communication (no compute runs "
    "meanwhile) is split: waiting for a late rank, and moving bytes."
)

RANKS_DRAWN: Final = 48
"""With more ranks the slowest are drawn, and the mean of the others."""

PARTS: Final = (
    ("compute", "compute", PALETTE["green"], ""),
    ("waiting", "exposed: waiting", PALETTE["yellow"], "x"),
    ("moving", "exposed: moving", PALETTE["orange"], "/"),
    ("unsplit", "exposed: waiting or moving unknown", PALETTE["vermillion"], "/"),
    ("copies", "exposed copies", PALETTE["purple"], "\\"),
    ("idle", "idle", PALETTE["sky"], ""),
    ("unattributed", "unattributed", PALETTE["grey"], ""),
)
"""Name, words, colour and, not by colour alone, pattern."""

_EXPOSED: Final = [name for name, _ in step_times.PARTS].index("exposed_comm_ns")

_SPEAKS_OF: Final = {
    "straggler": ("waiting",),
    "duplicated-compute": ("compute",),
    "duplicated-data": ("compute",),
    "recompute": ("compute",),
    "pipeline-bubble": ("waiting", "idle"),
    "pipeline-imbalance": ("compute",),
    "data-stall": ("idle",),
    "host-sync": ("idle",),
    "launch-bound": ("idle",),
    "checkpoint-stall": ("idle",),
    "transfer-stall": ("copies",),
    "unattributed-time": ("unattributed",),
}
"""Kind of a finding -> the parts that hold its time; other kinds of communication have exposed time."""


def figure(report: Report) -> Figure:
    """Return one bar per rank, mean over its surveyed steps; nothing to draw if no step finished."""
    every = step_times.rank_times(report)
    if not every:
        return Figure([], {}, ["No step finished, so there is no time to divide."])
    times, rest = step_times.fold(every, RANKS_DRAWN, shown=True)
    notes = _notes(report)
    if rest is not None:
        notes.append(
            f"The {len(times)} slowest of {len(every):,} ranks are drawn, and the mean of the other "
            f"{len(rest.ranks):,}."
        )
        times = [*times, rest]
    worst = step_times.longest(every)
    names = [_name(time, slowest=time is worst) for time in times]
    values = _values(times)
    data = [
        _bars(part, words, colour, pattern, names, times, values[part])
        for part, words, colour, pattern in PARTS
        # Drawn only if waiting and moving are not separated; the other parts are drawn even if they are zero.
        if part != "unsplit" or any(values[part])
    ]
    layout = {
        "barmode": "stack",
        "height": height(len(times)),
        "xaxis": {"title": {"text": "ms per step"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
        "legend": TOP_LEGEND,
    }
    return Figure(data, layout, notes, marks=_marks(report, times, [trace["name"] for trace in data]))


def _name(time: step_times.RankTime, *, slowest: bool) -> str:
    if len(time.ranks) > 1:
        return f"{len(time.ranks):,} others"
    return f"rank {time.ranks[0]}{' (slowest)' if slowest else ''}"


def _values(times: Sequence[step_times.RankTime]) -> dict[str, list[float | None]]:
    """Return each part of each mean step in ms, rounded so that they add up to its duration."""
    values: dict[str, list[float | None]] = {part: [] for part, *_ in PARTS}
    for time in times:
        whole = [None if part is None else ms(part) for part in time.parts_ns]
        compute, comm, copies, idle, unattributed = whole
        for part, value in zip(
            ("compute", "copies", "idle", "unattributed"), (compute, copies, idle, unattributed), strict=True
        ):
            values[part].append(value)
        if comm is None:
            for part in ("waiting", "moving", "unsplit"):
                values[part].append(None)
            continue
        waiting = min(comm, ms(time.waiting_ns or 0))
        moving = min(ms(time.moving_ns or 0), round(comm - waiting, 6))
        values["waiting"].append(waiting)
        values["moving"].append(moving)
        # The bar is as long as the exposed time: the unsplit part is the rest of it.
        values["unsplit"].append(round(comm - waiting - moving, 6))
    return values


def _bars(
    part: str,
    words: str,
    colour: str,
    pattern: str,
    names: Sequence[str],
    times: Sequence[step_times.RankTime],
    values: Sequence[float | None],
) -> dict[str, Any]:
    texts = []
    for name, time, value in zip(names, times, values, strict=True):
        took_ns = None if value is None else value * 1e6
        lines = [f"<b>{name}</b>", f"{words}: {human.duration(took_ns)}"]
        if took_ns is not None:
            lines.append(f"{human.share(took_ns, time.total_ns)} of {human.duration(time.total_ns)}")
        if part in ("waiting", "moving", "unsplit"):
            lines.append(f"exposed in all: {human.duration(time.parts_ns[_EXPOSED])}")
        if part == "unattributed" and time.recorded_whole:
            lines.append(f"of which capture: {human.duration(time.capture_ns)}")
        texts.append(hover(lines))
    ink = "#000000" if part == "waiting" else "#ffffff"
    return bars(words, names, values, texts, colour, pattern, ink)


def _marks(report: Report, times: Sequence[step_times.RankTime], drawn: Sequence[str]) -> Marks:
    """Return for each finding the bars of its ranks in the parts that hold its time."""
    trace = {part: drawn.index(words) for part, words, *_ in PARTS if words in drawn}
    marks: Marks = {}
    for number, finding in enumerate(report.findings, start=1):
        comm = ("waiting", "moving", "unsplit") if KINDS.get(finding.kind) == "communication" else ()
        ranks = set(finding.ranks)
        if finding.kind == "straggler":
            # It names the late rank; the others wait for it.
            ranks = {rank for time in times for rank in time.ranks} - ranks
        places = [bar for bar, time in enumerate(times) if ranks & set(time.ranks)]
        for part in _SPEAKS_OF.get(finding.kind, comm):
            if places and part in trace:
                marks.setdefault(number, {})[trace[part]] = places
    return marks


def _notes(report: Report) -> list[str]:
    """Return which steps the parts are the mean of, if not every step was divided, and the cost of
    recording."""
    recording = summary.recording(report)
    return [*_divided(report), *([] if recording is None else [recording])]


def _divided(report: Report) -> list[str]:
    levels = summary.levels(report)
    if levels is None:
        return []
    if all(time.divided for time in step_times.rank_times(report)):
        return [f"{levels}. The parts: {summary.mean_of(report)}."]
    if summary.surveyed_count(report):
        return [
            f"{levels}. The parts are the mean over the surveyed steps and add up to them. Watched steps "
            "show only their time and exposed communication: see the table."
        ]
    return [f"{levels}. In a watched step what is not exposed communication is unattributed."]
