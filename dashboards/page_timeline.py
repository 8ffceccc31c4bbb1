"""Figure: every rank's collectives in time, with their waiting and exposed parts marked.

Twenty thousand collectives as SVG elements of their own take a browser ten seconds. So the page gets
columns of numbers, and its script draws each kind of part as one outline (`page_script`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from shardtoll.dashboards import human
from shardtoll.dashboards.figure import (
    ASKED,
    ASKED_LEAD,
    ASKED_WORDS,
    PALETTE,
    TOP_LEGEND,
    Columns,
    Figure,
    Strings,
    height,
    ms,
)
from shardtoll.dashboards.sites import asked, cause, plain
from shardtoll.dashboards.text import clip
from shardtoll.ledger import Report

if TYPE_CHECKING:
    import pandas as pd

LEAD: Final = (
    "One row a rank. Drag to zoom, double-click to go back. Orange under a collective is its exposed time: "
    "the length is measured, its place inside the collective is not, and it is drawn at the end. Hatched "
    "yellow is waiting for the last rank to arrive. " + ASKED_LEAD
)

DRAWN: Final = 20_000
"""Collectives drawn one by one; with more, the cheapest are folded."""
STRETCHES: Final = 200
"""Equal stretches of time in which each rank's folded collectives are counted."""
TICKS: Final = 32
"""Ranks that have their number at the axis; with more, every second, third, ... has."""


def figure(report: Report, drawn: int = DRAWN) -> Figure:
    """Return one row a rank; nothing to draw where no collective has a start and a duration."""
    frame = report.collectives
    timed = frame[frame["start_ns"].notna() & frame["duration_ns"].notna()]
    notes = []
    if len(timed) < len(frame):
        some = human.plural(len(frame) - len(timed), "collective")
        notes.append(f"{some} of {len(frame):,} not drawn: start or duration is unknown.")
    if timed.empty:
        return Figure([], {}, notes or ["There are no collectives."])
    shown, rest = _dearest(timed, drawn)
    if len(rest):
        notes.append(
            f"The {drawn:,} dearest of {len(timed):,} collectives are drawn one by one (by exposed time, "
            f"then by duration). The other {len(rest):,} are folded into grey bars, one for each "
            f"{STRETCHES}th of the time and rank."
        )
    rows = {int(rank): at for at, rank in enumerate(sorted(frame["rank"].unique()))}
    strings = Strings()
    calls = plain(shown)
    columns = {
        "steps": _steps(report, rows),
        "folded": _folded(rest, rows),
        "calls": _calls(calls, rows, strings),
    }
    return Figure(_traces(columns, calls), _layout(rows), notes, strings.all(), columns)


def _dearest(timed: pd.DataFrame, most: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows with the most exposed time, and the others; both in the ledger's order."""
    cost = timed.assign(exposed_ns=timed["exposed_ns"].fillna(0))
    order = cost.sort_values(["exposed_ns", "duration_ns"], ascending=False, kind="stable").index
    kept = timed.index.isin(order[:most])
    return timed[kept], timed[~kept]


def _layout(rows: Mapping[int, int]) -> dict[str, Any]:
    every = -(-len(rows) // TICKS)
    return {
        "height": height(len(rows), each=44),
        "dragmode": "zoom",
        "hovermode": False,
        "xaxis": {"title": {"text": "ms since the run's epoch"}, "zeroline": False},
        "yaxis": {
            "range": [len(rows) - 0.5, -0.5],
            "tickmode": "array",
            "tickvals": list(rows.values())[::every],
            "ticktext": [f"rank {rank}" for rank in rows][::every],
            "showgrid": False,
            "zeroline": False,
            # With few ranks a drag zooms time only, which is what one wants.
            "fixedrange": len(rows) <= 16,
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


def _spans(rows: Mapping[int, int], records: Sequence[dict[str, Any]]) -> Columns:
    return {
        "row": [rows[record["rank"]] for record in records],
        "start": [ms(record["start_ns"]) for record in records],
        "length": [ms(record["duration_ns"]) for record in records],
    }


def _steps(report: Report, rows: Mapping[int, int]) -> Columns:
    steps = [step for step in plain(report.steps) if step["rank"] in rows]
    return {**_spans(rows, steps), "step": [step["step"] for step in steps]}


def _folded(rest: pd.DataFrame, rows: Mapping[int, int]) -> Columns:
    if rest.empty:
        return _spans(rows, [])
    first, last = int(rest["start_ns"].min()), int(rest["start_ns"].max())
    width_ns = -(-(last - first + 1) // STRETCHES)
    stretch, end_ns = (rest["start_ns"] - first) // width_ns, rest["start_ns"] + rest["duration_ns"]
    counted = (
        rest.assign(stretch=stretch, end_ns=end_ns)
        .groupby(["rank", "stretch"], sort=True)
        .agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"), calls=("rank", "size"))
    )
    records = plain(counted.reset_index())
    for record in records:
        record["duration_ns"] = record["end_ns"] - record["start_ns"]
    return {**_spans(rows, records), "calls": [record["calls"] for record in records]}


def _calls(calls: Sequence[dict[str, Any]], rows: Mapping[int, int], strings: Strings) -> Columns:
    def column(name: str) -> list[float | None]:
        return [None if call[name] is None else ms(call[name]) for call in calls]

    return {
        **_spans(rows, calls),
        "exposed": column("exposed_ns"),
        "wait": column("wait_ns"),
        "floor": column("floor_ns"),
        "step": [call["step"] for call in calls],
        "number": [call["seq"] for call in calls],
        "text": [strings.add(_words(call)) for call in calls],
    }


def _words(call: dict[str, Any]) -> str:
    """What the collective is and why; its numbers stand in the columns. Shown as plain text."""
    group = f"×{call['group_size']} {clip(call['mesh_dim'] or call['group'], 40)}"
    head = f"rank {call['rank']}: {clip(call['op'], 40)} {group}, {human.size(call['message_bytes'])}"
    return f"{head}\n{cause(SimpleNamespace(**call))}"
