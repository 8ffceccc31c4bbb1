"""Figure: every rank's collectives in time, with their waiting and exposed parts marked.

Twenty thousand collectives as SVG elements of their own take a browser ten seconds. So the page gets
columns of numbers, and its script draws each kind of part as one outline (`page_script`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shardtoll.dashboards import human, timeline_calls
from shardtoll.dashboards.figure import (
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
from shardtoll.dashboards.lanes import Lanes, lanes
from shardtoll.dashboards.match_ids import match_ids
from shardtoll.dashboards.row_codes import Bools, Ints
from shardtoll.dashboards.sites import asked, plain
from shardtoll.dashboards.spoken import Spoken, spoken
from shardtoll.dashboards.summary import by_severity
from shardtoll.ledger import Report, Where
from shardtoll.ledger.subject import speaks_of
from shardtoll.ledger.tables import to_frame

if TYPE_CHECKING:
    import pandas as pd

LEAD: Final = (
    "One row a rank, or one for each of its streams or groups. Drag to zoom, double-click to go back. Orange "
    "under a collective is its exposed time: the length is measured, its place inside the collective is not, "
    "and it is drawn at the end. Hatched yellow is waiting for the last rank to arrive. Point at a "
    "collective, or step to it with the arrow keys: a line joins its arrivals on all ranks and ends bold "
    "at the last. " + ASKED_LEAD
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


def figure(report: Report, drawn: int = DRAWN) -> Figure:
    """Return the rows of all ranks; nothing to draw where no collective has a start and a duration."""
    table = report.tables["collectives"]
    frame = to_frame(table.select(_NEEDED))
    known: Bools = (frame["start_ns"].notna() & frame["duration_ns"].notna()).to_numpy(dtype=bool)
    at: Ints = np.flatnonzero(known).astype(np.int64)
    notes = []
    if len(at) < len(frame):
        some = human.plural(len(frame) - len(at), "collective")
        notes.append(f"{some} of {len(frame):,} not drawn: start or duration is unknown.")
    if not len(at):
        return Figure([], {}, notes or ["There are no collectives."])
    ranks = sorted({int(rank) for rank in frame["rank"].unique()})
    if len(ranks) > RANKS_DRAWN:
        kept = _most_exposed(frame)
        at = at[frame["rank"].isin(kept).to_numpy(dtype=bool)[at]]
        notes.append(f"The {RANKS_DRAWN} ranks with the most exposed time of {len(ranks):,} have a row.")
        ranks = kept
    timed, met, said = frame.take(at), match_ids(report), spoken(report)
    shown = _dearest(timed, met[at], drawn)
    rows = lanes(timed, ranks)
    stretches = max(LEAST_STRETCHES, min(STRETCHES, BARS // len(rows.ranks)))
    if not shown.all():
        notes.append(
            f"The {int(shown.sum()):,} dearest of {len(at):,} collectives are drawn one by one (by exposed "
            f"time on all ranks, then by duration). The other {int((~shown).sum()):,} are folded into grey "
            f"bars, one for each {stretches}th of the time and row."
        )
    strings = Strings()
    calls = plain(to_frame(table.take(at[shown])))
    folded, bars = _folded(timed[~shown], rows.of_call[~shown], stretches)
    columns: dict[str, Columns] = {
        "rows": {"rank": list(rows.ranks)},
        "steps": timeline_calls.steps(report, rows.extent()),
        "folded": folded,
        "calls": timeline_calls.calls(calls, rows.of_call[shown], met[at[shown]], strings),
    }
    data = _traces(columns, calls)
    marks = _marks(data, said, at[shown], at[~shown], bars) | _whole_steps(report, rows, columns["steps"])
    return Figure(data, _layout(rows), [*notes, *rows.notes], strings.all(), columns, marks)


def _most_exposed(frame: pd.DataFrame) -> list[int]:
    """Return the ranks that have a row where there are too many."""
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
            "tickvals": [at for at, _ in ticks],
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
    found = [
        trace("step", "steps", every("steps"), "whole", sky, (-0.46, 0.46), opacity=0.18),
        trace("folded", "folded", every("folded"), "whole", grey, (-0.34, 0.34), opacity=0.5),
    ]
    for name, colour in ASKED.items():
        pick = [at for at, call in enumerate(calls) if asked(call["implicit"]) == name]
        found.append(trace(ASKED_WORDS[name], "calls", pick, "whole", colour, (-0.34, 0.2), opacity=0.85))
    waits = [at for at, call in enumerate(calls) if call["wait_ns"]]
    hatched = {"shape": "x", "size": 6, "solidity": 0.4, "fgcolor": "#000000", "bgcolor": PALETTE["yellow"]}
    found.append(
        trace("waiting", "calls", waits, "wait", PALETTE["yellow"], (-0.34, -0.08), fillpattern=hatched)
    )
    exposed = [at for at, call in enumerate(calls) if call["exposed_ns"]]
    found.append(trace("exposed", "calls", exposed, "exposed", PALETTE["orange"], (0.22, 0.38)))
    return [one for one in found if one["rects"]["pick"]]


def _folded(rest: pd.DataFrame, row: Ints, stretches: int) -> tuple[Columns, Ints]:
    """Return one bar for each row and stretch of time with a folded collective, and each one's bar."""
    import pandas as pd

    if rest.empty:
        return timeline_calls.spans([], [], []), np.empty(0, dtype=np.int64)
    start = rest["start_ns"].to_numpy(dtype=np.int64)
    end = start + rest["duration_ns"].to_numpy(dtype=np.int64)
    width_ns = -(-(int(start.max()) - int(start.min()) + 1) // stretches)
    stretch = (start - start.min()) // width_ns
    by_bar = pd.DataFrame({"row": row, "stretch": stretch, "start": start, "end": end}).groupby(
        ["row", "stretch"], sort=True
    )
    bars = by_bar.agg(start=("start", "min"), end=("end", "max"), calls=("start", "size")).reset_index()
    spans = timeline_calls.spans(
        bars["row"].tolist(), bars["start"].tolist(), (bars["end"] - bars["start"]).tolist()
    )
    return {**spans, "calls": bars["calls"].tolist()}, by_bar.ngroup().to_numpy(dtype=np.int64)


def _whole_steps(report: Report, rows: Lanes, steps: Columns) -> Marks:
    """Return the steps of its ranks for each finding that is not of collectives, or names no part of the
    step; steps are trace 0."""
    middle = {rank: at for rank, (at, _) in rows.extent().items()}
    marks: Marks = {}
    for number, finding in by_severity(report.findings):
        own = {middle[rank] for rank in finding.ranks if rank in middle}
        found = [at for at, row in enumerate(steps["row"]) if row in own]
        whole = finding.where == Where() or speaks_of(finding.kind) != "collectives"
        if whole and found:
            marks[number] = {0: found}
    return marks


def _marks(data: Sequence[dict[str, Any]], said: Spoken, shown: Ints, rest: Ints, bars: Ints) -> Marks:
    """Return what each finding speaks of: collectives, and bars that hold a folded one of it."""
    marks: Marks = {}
    place = {name: at for at, name in enumerate(trace["name"] for trace in data)}
    for number in said.flags:
        of_it = said.rows(number)
        drawn = np.zeros(len(shown), dtype=bool)
        drawn[:] = of_it[shown]
        for words in ASKED_WORDS.values():
            if words in place:
                own = drawn[data[place[words]]["rects"]["pick"]]
                if own.any():
                    marks.setdefault(number, {})[place[words]] = [int(at) for at in np.flatnonzero(own)]
        held = np.unique(bars[of_it[rest]]) if "folded" in place else bars
        if len(held):
            marks.setdefault(number, {})[place["folded"]] = [int(at) for at in held]
    return marks
