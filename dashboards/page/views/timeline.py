"""Figure: every rank's collectives in time, with their waiting and exposed parts marked.

Twenty thousand collectives as SVG elements of their own take a browser ten seconds. So the page gets
columns of numbers, and its script draws each kind of part as one outline (`assets/figures.js`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards.facts.row_codes import NONE, Bools, Ints, ints
from shardtoll.dashboards.facts.sites import asked, plain
from shardtoll.dashboards.facts.spoken import Spoken, spoken
from shardtoll.dashboards.page.html.figure import (
    ASKED,
    ASKED_LEAD,
    ASKED_WORDS,
    PALETTE,
    TOP_LEGEND,
    Columns,
    Figure,
    Marks,
    Strings,
    height,
)
from shardtoll.dashboards.page.views import timeline_rows
from shardtoll.dashboards.page.views.timeline_clock import Clock, clock
from shardtoll.dashboards.page.views.timeline_rows import Lanes, lanes
from shardtoll.ledger import Report
from shardtoll.ledger.tables.tables import to_frame
from shardtoll.ledger.words import human

if TYPE_CHECKING:
    import pandas as pd

LEAD: Final = (
    "One row per rank, or one for each of its streams or groups. Drag to zoom, double-click to go back. "
    "Orange under a collective is its exposed time. Its length is measured, its place is not: it is drawn "
    "at the end. Hatched yellow is waiting for the last rank to arrive. Point at a collective, or step to "
    "it with the arrow keys: a line joins its arrivals on all ranks, bold at the last. " + ASKED_LEAD
)

DRAWN: Final = 4_000
"""Collectives drawn one by one; with more, the cheapest are folded. A browser draws so many, with their
parts, in a third of a second."""
STRETCHES: Final = 200
"""Equal stretches of time in which each row's folded collectives are counted, with few rows."""
BARS: Final = 2_000
"""Grey bars that are drawn at most, unless there are fewer than `LEAST_STRETCHES` for each row."""
LEAST_STRETCHES: Final = 25
RANKS_DRAWN: Final = 128
"""With more ranks those with the most exposed time have a row."""
TICKS: Final = 32
"""Rows that have their name at the axis; with more, every second, third, ... rank has."""
_NEEDED: Final = ["rank", "group", "mesh_dim", "stream", "start_ns", "duration_ns", "exposed_ns"]


def figure(report: Report, drawn: int = DRAWN, time: Clock | None = None) -> Figure:
    """Return the rows of all ranks; nothing to draw if no collective has a start and a duration.

    `time`: the clock of the whole run, of which the report is a part; without it, the report's own.
    """
    table = report.tables["collectives"]
    frame = to_frame(table.select(_NEEDED))
    has_time: Bools = (frame["start_ns"].notna() & frame["duration_ns"].notna()).to_numpy(dtype=bool)
    drawable: Ints = np.flatnonzero(has_time).astype(np.int64)
    notes = []
    if len(drawable) < len(frame):
        some = human.plural(len(frame) - len(drawable), "collective")
        notes.append(f"{some} of {len(frame):,} not drawn: start or duration is unknown.")
    if not len(drawable):
        return Figure([], {}, notes or ["There are no collectives."])
    ranks = sorted({int(rank) for rank in frame["rank"].unique()})
    if len(ranks) > RANKS_DRAWN:
        kept = _most_exposed(frame)
        drawable = drawable[frame["rank"].isin(kept).to_numpy(dtype=bool)[drawable]]
        notes.append(f"The {RANKS_DRAWN} ranks with the most exposed time of {len(ranks):,} have a row.")
        ranks = kept
    time = clock(report) if time is None else time
    timed, said = frame.take(drawable), spoken(report)
    met = ints(report.tables["collectives"].column("match_id"), NONE)
    shown = _dearest(timed, met[drawable], drawn)
    rows = lanes(timed, ranks)
    stretches = max(LEAST_STRETCHES, min(STRETCHES, BARS // len(rows.ranks)))
    if not shown.all():
        notes.append(
            f"The {int(shown.sum()):,} most expensive of {len(drawable):,} collectives are drawn one by "
            f"one (by exposed time on all ranks, then by duration). The other {int((~shown).sum()):,} are "
            f"folded into grey bars, one for each {stretches}th of the time and row."
        )
    strings = Strings()
    calls = plain(to_frame(table.take(drawable[shown])))
    folded, bars = _folded(timed[~shown], rows.of_call[~shown], stretches, time)
    columns: dict[str, Columns] = {
        "rows": {"rank": list(rows.ranks)},
        "steps": timeline_rows.steps(report, rows.extent(), time),
        "folded": folded,
        "calls": timeline_rows.calls(calls, rows.of_call[shown], met[drawable[shown]], strings, time),
        **time.columns(),
    }
    data = _traces(columns, calls)
    marks = _marks(data, said, drawable[shown], drawable[~shown], bars)
    marks |= _whole_steps(report, rows.extent())
    layout = {**_layout(rows), "shapes": time.stripes()}
    return Figure(data, layout, [*notes, *time.notes(), *rows.notes], strings.all(), columns, marks)


def _most_exposed(frame: pd.DataFrame) -> list[int]:
    """Return the ranks that have a row if there are too many."""
    cost = frame["exposed_ns"].fillna(0).groupby(frame["rank"]).sum()
    dear = cost.sort_values(ascending=False, kind="stable").index[:RANKS_DRAWN]
    return sorted(int(rank) for rank in dear)


def _dearest(timed: pd.DataFrame, met: Ints, most: int) -> Bools:
    """Return which rows are drawn one by one: those with the most exposed time, with all who met there."""
    import pandas as pd

    if len(timed) <= most:
        return np.ones(len(timed), dtype=bool)
    alone = np.arange(len(timed)) + int(met.max()) + 1
    rows = pd.DataFrame(
        {
            "met": np.where(met >= 0, met, alone),
            "exposed": timed["exposed_ns"].fillna(0).to_numpy(dtype=np.int64),
            "took": timed["duration_ns"].to_numpy(dtype=np.int64),
        }
    )
    each = rows.groupby("met", sort=False).agg(
        exposed=("exposed", "sum"), took=("took", "sum"), calls=("took", "size")
    )
    each = each.sort_values(["exposed", "took"], ascending=False, kind="stable")
    kept = set(each.index[(each["calls"].cumsum() <= most).to_numpy()])
    dear: Bools = rows["met"].isin(kept).to_numpy(dtype=bool)
    return dear


def _layout(rows: Lanes) -> dict[str, Any]:
    count = len(rows.ranks)
    if count <= TICKS:
        ticks = [(float(row), rows.label(row)) for row in range(count)]
    else:
        extent = rows.extent()
        every = -(-len(extent) // TICKS)
        ticks = [(middle, f"rank {rank}") for rank, (middle, _) in extent.items()][::every]
    return {
        "height": height(count, each=44),
        "dragmode": "zoom",
        "hovermode": False,
        "xaxis": {"title": {"text": "ms since the run's epoch"}, "zeroline": False},
        "yaxis": {
            "range": [count - 0.5, -0.5],
            "tickmode": "array",
            "tickvals": [tick for tick, _ in ticks],
            "ticktext": [words for _, words in ticks],
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
            # With few ranks a drag zooms time only, which is what one wants.
            "fixedrange": count <= 16,
        },
        "legend": TOP_LEGEND,
    }


def _traces(columns: Mapping[str, Columns], calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one trace for each kind of part; `band` is the part of a row that it fills, from its middle."""

    def trace(
        name: str, table: str, pick: list[int], part: str, colour: str, band: tuple[float, float], **more: Any
    ) -> dict[str, Any]:
        rects = {"of": table, "pick": pick, "part": part, "band": band}
        return {
            "type": "scatter",
            "mode": "none",
            "fill": "toself",
            # Plotly need not prepare for a pointer that the page's script looks after.
            "hoverinfo": "skip",
            "name": name,
            "fillcolor": colour,
            "rects": rects,
            **more,
        }

    def every(table: str) -> list[int]:
        return list(range(len(columns[table]["row"])))

    grey, sky = PALETTE["grey"], PALETTE["sky"]
    traces = [
        trace("step", "steps", every("steps"), "whole", sky, (-0.46, 0.46), opacity=0.18),
        trace("folded", "folded", every("folded"), "whole", grey, (-0.34, 0.34), opacity=0.5),
    ]
    for name, colour in ASKED.items():
        pick = [row for row, call in enumerate(calls) if asked(call["implicit"]) == name]
        traces.append(trace(ASKED_WORDS[name], "calls", pick, "whole", colour, (-0.34, 0.2), opacity=0.85))
    waits = [row for row, call in enumerate(calls) if call["wait_ns"]]
    hatched = {"shape": "x", "size": 6, "solidity": 0.4, "fgcolor": "#000000", "bgcolor": PALETTE["yellow"]}
    traces.append(
        trace("waiting", "calls", waits, "wait", PALETTE["yellow"], (-0.34, -0.08), fillpattern=hatched)
    )
    exposed = [row for row, call in enumerate(calls) if call["exposed_ns"]]
    traces.append(trace("exposed", "calls", exposed, "exposed", PALETTE["orange"], (0.22, 0.38)))
    return [each for each in traces if each["rects"]["pick"]]


def _folded(rest: pd.DataFrame, row: Ints, stretches: int, time: Clock) -> tuple[Columns, Ints]:
    """Return one bar for each row and stretch of time with a folded collective, and each one's bar."""
    import pandas as pd

    if rest.empty:
        return timeline_rows.spans([], [], []), np.empty(0, dtype=np.int64)
    clock_ns = rest["start_ns"].to_numpy(dtype=np.int64)
    start = time.drawn(clock_ns)
    end = start + rest["duration_ns"].to_numpy(dtype=np.int64)
    width_ns = -(-(int(start.max()) - int(start.min()) + 1) // stretches)
    stretch = (start - start.min()) // width_ns
    # No bar reaches over a folded gap.
    part = time.stretch(clock_ns)
    by_bar = pd.DataFrame({"row": row, "stretch": stretch, "part": part, "start": start, "end": end}).groupby(
        ["row", "stretch", "part"], sort=True
    )
    bars = by_bar.agg(start=("start", "min"), end=("end", "max"), calls=("start", "size")).reset_index()
    spans = timeline_rows.spans(
        bars["row"].tolist(), bars["start"].tolist(), (bars["end"] - bars["start"]).tolist()
    )
    return {**spans, "calls": bars["calls"].tolist()}, by_bar.ngroup().to_numpy(dtype=np.int64)


def _whole_steps(report: Report, drawn: Mapping[int, object]) -> Marks:
    """Return, for each finding that speaks of no collective, the steps that it or its operators are of.

    Steps are trace 0: those of the ranks `drawn`, as they stand in their table.
    """
    table = report.tables["steps"]
    rank, step = (ints(table.column(name), NONE) for name in ("rank", "step"))
    shown = np.isin(rank, list(drawn))
    computes = report.tables["computes"]
    marks: Marks = {}
    for number, finding in enumerate(report.findings, start=1):
        if finding.rows.collectives:
            continue
        spoken_of = finding.rows.mask("steps", table.num_rows)
        if finding.rows.computes:
            spoken_computes = computes.filter(pa.array(finding.rows.mask("computes", computes.num_rows)))
            spoken_computes = (
                spoken_computes.filter(pc.is_valid(spoken_computes["step"]))
                .select(["rank", "step"])
                .group_by(["rank", "step"])
            )
            for each in spoken_computes.aggregate([]).to_pylist():
                spoken_of |= (rank == each["rank"]) & (step == each["step"])
        lit = np.flatnonzero(spoken_of[shown])
        if len(lit):
            marks[number] = {0: lit.tolist()}
    return marks


def _marks(data: Sequence[dict[str, Any]], said: Spoken, shown: Ints, rest: Ints, bars: Ints) -> Marks:
    """Return what each finding speaks of: collectives, and bars that hold a folded one of it."""
    marks: Marks = {}
    place = {name: point for point, name in enumerate(trace["name"] for trace in data)}
    for number in said.flags:
        of_it = said.rows(number)
        drawn = np.zeros(len(shown), dtype=bool)
        drawn[:] = of_it[shown]
        for words in ASKED_WORDS.values():
            if words in place:
                lit = drawn[data[place[words]]["rects"]["pick"]]
                if lit.any():
                    marks.setdefault(number, {})[place[words]] = [int(point) for point in np.flatnonzero(lit)]
        held = np.unique(bars[of_it[rest]]) if "folded" in place else bars
        if len(held):
            marks.setdefault(number, {})[place["folded"]] = [int(point) for point in held]
    return marks
