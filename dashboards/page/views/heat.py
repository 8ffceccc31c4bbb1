"""Figure: ranks by steps, coloured by how long the others waited for the rank."""

from __future__ import annotations

import warnings
from typing import Any, Final

import numpy as np

from shardtoll.dashboards.facts.waits import Floats, Grid, by_rank_and_step
from shardtoll.dashboards.page.html.figure import PALETTE, Figure, Marks, ms
from shardtoll.dashboards.page.html.tables import table
from shardtoll.ledger import Report
from shardtoll.ledger.words import human

LEAD: Final = (
    "How long other ranks waited for each rank, by step. It is exposed waiting in collectives to which the "
    "rank came last, on the rank that waited most. A bright row: a rank that is late by habit. A bright "
    "column: a step in which something happened. Bright cells all over: ranks that take turns. Grey: "
    "unknown."
)

ROWS: Final = 64
COLUMNS: Final = 160
"""Cells; more ranks or steps are taken together."""
TICKS: Final = 12
"""Columns that are named under the figure: so few short numbers need not be slanted."""

KINDS: Final = (
    *("straggler", "pipeline-imbalance", "data-stall", "host-sync", "launch-bound", "transfer-stall"),
)
"""Findings that speak of ranks, and not of records."""


def figure(report: Report) -> Figure:
    """Return the heat map; nothing to draw if there is only one rank, or nothing is matched."""
    grid = by_rank_and_step(report)
    if grid is None or len(grid.ranks) < 2 or not grid.steps:
        return Figure([], {}, [])
    notes = []
    if not grid.waits:
        notes.append(
            "No collective is matched over all ranks of its group, so it is unknown which rank was waited "
            "for. The colour is a rank's compute beyond the median rank of the step."
        )
    values, names, rows, words = _fewer_ranks(grid)
    notes += words
    values, ticks, words = _fewer_steps(values, grid.steps)
    notes += words
    most = float(np.nan_to_num(values).max())
    if not most:
        notes.append("No rank was waited for." if grid.waits else "No rank computed more than another.")
    unknown = int(np.isnan(values).sum())
    if unknown:
        of = f"{values.size:,} cells"
        notes.append(f"{unknown:,} of {of} are not known: no collective of that rank and step is matched.")
    hover = "<b>%{y}</b>, %{x}<br>%{z:.3~f} ms "
    shared = {"x": ticks, "y": names, "hoverongaps": False, "xgap": int(len(ticks) <= 80), "ygap": 1}
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            **shared,
            "z": [[None if np.isnan(value) else ms(float(value)) for value in row] for row in values],
            "colorscale": "Cividis",
            "zmin": 0,
            "zmax": ms(most) or 1,
            "colorbar": {"title": {"text": "ms", "side": "right"}, "thickness": 14},
            "hovertemplate": hover + ("waited for it" if grid.waits else "more compute") + "<extra></extra>",
        }
    ]
    if unknown:
        data.append(
            {
                "type": "heatmap",
                **shared,
                "z": [[1 if np.isnan(value) else None for value in row] for row in values],
                "colorscale": [[0, PALETTE["grey"]], [1, PALETTE["grey"]]],
                "opacity": 0.35,
                "showscale": False,
                "hovertemplate": "<b>%{y}</b>, %{x}<br>not known<extra></extra>",
            }
        )
    layout = {
        "height": 170 + min(26 * len(names), 560),
        "xaxis": {"type": "category", "showgrid": False, **_ticks(ticks)},
        "yaxis": {
            "type": "category",
            "autorange": "reversed",
            "automargin": True,
            "showgrid": False,
            "nticks": 33,
        },
    }
    return Figure(data, layout, notes, marks=_marks(report, rows, len(ticks)))


def _fewer_ranks(grid: Grid) -> tuple[Floats, list[str], list[tuple[int, ...]], list[str]]:
    """Return the rows shown, their names, the ranks of each, and a note about the others."""
    if len(grid.ranks) <= ROWS:
        names = [f"rank {rank}" for rank in grid.ranks]
        return grid.ns, names, [(rank,) for rank in grid.ranks], []
    order = np.argsort(-np.nansum(grid.ns, axis=1), kind="stable")
    kept, rest = np.sort(order[: ROWS - 1]), np.sort(order[ROWS - 1 :])
    others = _over(grid.ns[rest], 0, "max")[None, :]
    values = np.vstack([grid.ns[kept], others])
    ranks = [(grid.ranks[row],) for row in kept] + [tuple(grid.ranks[row] for row in rest)]
    names = [f"rank {grid.ranks[row]}" for row in kept] + [f"{len(rest):,} others"]
    return (
        values,
        names,
        ranks,
        [
            f"The {ROWS - 1} ranks with the most of {len(grid.ranks):,} are shown, in order of rank. The "
            "last row shows, for each step, the largest of the others."
        ],
    )


def _fewer_steps(values: Floats, steps: tuple[int, ...]) -> tuple[Floats, list[str], list[str]]:
    """Return the columns shown, their names, and what to say if steps are taken together."""
    if len(steps) <= COLUMNS:
        return values, [f"step {step}" for step in steps], []
    each = -(-len(steps) // COLUMNS)
    starts = range(0, len(steps), each)
    wide = np.column_stack([_over(values[:, start : start + each], 1, "mean") for start in starts])
    names = []
    for start in starts:
        first, last = steps[start], steps[min(start + each, len(steps)) - 1]
        names.append(f"steps {first}-{last}" if last > first else f"step {first}")
    said = f"Each column is the mean over {each} of {len(steps):,} steps, those left out that are not known."
    return wide, names, [said]


def _ticks(names: list[str]) -> dict[str, Any]:
    """Return the axis's labels: the number of the step, or of the first one of a column's."""
    some = names[:: max(1, -(-len(names) // TICKS))]
    together = any(name.startswith("steps") for name in names)
    return {
        "tickmode": "array",
        "tickvals": some,
        "ticktext": [name.split(" ")[1].partition("-")[0] for name in some],
        "tickangle": 0,
        "title": {"text": "step, of each column the first" if together else "step"},
    }


def _over(values: Floats, axis: int, how: str) -> Floats:
    """Return the largest or mean of the known values; unknown if there is none."""
    with warnings.catch_warnings():
        # No known value is no mistake.
        warnings.simplefilter("ignore", RuntimeWarning)
        folded: Floats = (np.nanmax if how == "max" else np.nanmean)(values, axis=axis)
    return folded


def _marks(report: Report, rows: list[tuple[int, ...]], columns: int) -> Marks:
    """Return the rows of the ranks that a finding of `KINDS` is about, if not of all ranks."""
    marks: Marks = {}
    for number, finding in enumerate(report.findings, start=1):
        named = set(finding.ranks)
        if finding.kind not in KINDS or named >= set(report.run.ranks_seen):
            continue
        lit = [row for row, ranks in enumerate(rows) if len(ranks) == 1 and ranks[0] in named]
        if lit:
            marks[number] = {0: [row * columns + step for row in lit for step in range(columns)]}
    return marks


def numbers(report: Report) -> str:
    """Return each rank's mean and worst step as a table, the rank with the most first."""
    grid = by_rank_and_step(report)
    if grid is None or len(grid.ranks) < 2 or not grid.steps:
        return ""
    rows = []
    mean, most = _over(grid.ns, 1, "mean"), _over(grid.ns, 1, "max")
    order = sorted(range(len(grid.ranks)), key=lambda rank: -np.nan_to_num(mean[rank], nan=-1.0))
    for rank in order[:ROWS]:
        timed = ~np.isnan(grid.ns[rank])
        if not timed.any():
            rows.append([str(grid.ranks[rank]), human.UNKNOWN, human.UNKNOWN, human.UNKNOWN, "0"])
            continue
        worst = grid.steps[int(np.nanargmax(grid.ns[rank]))]
        cells = (human.duration(float(mean[rank])), human.duration(float(most[rank])))
        rows.append([str(grid.ranks[rank]), *cells, str(worst), human.number(int(timed.sum()))])
    if len(order) > ROWS:
        rows.append([f"and {len(order) - ROWS:,} more", *[""] * 4])
    what = "waited for it" if grid.waits else "compute beyond the median rank"
    return table(("rank", f"{what}, mean step", "in its worst step", "which is step", "steps known"), rows,
                 "waiting by rank")  # fmt: skip
