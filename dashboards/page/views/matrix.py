"""Figure: bytes from rank to rank in a step, by the algorithm assumed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardtoll.dashboards.facts.calls import calls
from shardtoll.dashboards.facts.flows import NOWHERE, flows, folded
from shardtoll.dashboards.facts.nodes import Nodes, nodes
from shardtoll.dashboards.page.html.figure import PALETTE, Figure, Marks, literal
from shardtoll.ledger import Report
from shardtoll.ledger.words import human

LEAD: Final = (
    "Wire bytes of a mean step from each rank (row) to each rank (column). Senders and receivers follow "
    "from the assumed algorithm. Ring: to the next rank of the group; all_to_all and scatter: to all "
    "others equally; send: to its peer. Empty cells carry nothing."
)

MOST: Final = 64
"""Rows and columns; more ranks are taken together."""

_RATIO: Final = 30
"""From the largest cell to the smallest, beyond which colours go by the logarithm."""

_UNSEEN: Final = [[0, PALETTE["grey"]], [1, PALETTE["grey"]]]


@dataclass(frozen=True, slots=True)
class Cells:
    """The rows and columns of the matrix."""

    of: npt.NDArray[np.int64]
    """Cell by rank."""
    names: tuple[str, ...]
    said: str
    """How ranks are combined; empty if they are not."""


def cells(world_size: int, place: Nodes) -> Cells:
    """Return one cell per rank; with many ranks one per node or, if there are too many, one per block of
    ranks."""
    if world_size <= MOST:
        return Cells(np.arange(world_size), tuple(f"rank {rank}" for rank in range(world_size)), "")
    if place.known and 1 < len(place.names) <= MOST:
        names = tuple(
            f"{name} (ranks {human.runs(np.flatnonzero(place.of == start).tolist())})"
            for start, name in enumerate(place.names)
        )
        return Cells(place.of, names, f"The {world_size:,} ranks are taken together by node.")
    each = -(-world_size // MOST)
    of = np.arange(world_size) // each
    ends = [(start, min(start + each, world_size) - 1) for start in range(0, world_size, each)]
    names = tuple(f"ranks {first}-{last}" for first, last in ends)
    return Cells(of, names, f"The {world_size:,} ranks are taken together in blocks of {each}.")


def figure(report: Report) -> Figure:
    """Return the heat map; nothing to draw if no rank sends anything."""
    records, place = calls(report), nodes(report.run)
    notes = records.notes()
    fold = cells(report.run.world_size, place)
    if fold.said:
        notes.append(f"{fold.said} Bytes inside one of them stand on the diagonal.")
    rows, way = folded(records.rows)
    moved = flows(report, rows, fold.of)
    if not len(moved.row):
        return Figure([], {}, [])
    rank = rows["rank"].to_numpy(dtype=np.int64)
    source = fold.of[rank]
    count = len(fold.names)
    nowhere = bool((moved.cell == NOWHERE).any())
    # The last column is for what goes to nobody knows whom.
    sent = np.zeros((count, count + 1), dtype=np.int64)
    np.add.at(sent, (source[moved.row], moved.cell), moved.bytes)
    wide = count + nowhere
    names = [*(literal(name, 40) for name in fold.names), *(["not known"] if nowhere else [])]
    if nowhere:
        lost = human.size(records.per_step(int(sent[:, -1].sum())))
        notes.append(
            f"The receivers of {lost} {records.a_step} are unknown (group, root or algorithm not on "
            "record): last column."
        )
    values = [[records.per_step(int(value)) for value in row] for row in sent[:, :wide]]
    unsized = int(records.rows["unsized"].sum())
    if unsized:
        notes.append(f"{human.plural(unsized, 'collective')} not counted: the size is unknown.")
    lit = np.zeros(count, dtype=bool)
    lit[fold.of[list(report.run.ranks_seen)]] = True
    data = [_trace(values, names, fold.names, records.a_step, place, fold)]
    if not lit.all():
        unseen = [[None if seen else 1] * wide for seen in lit]
        data.append(_unseen(unseen, names, fold.names))
        why = "are not forecast" if report.run.is_forecast else "left no records"
        notes.append(f"Grey rows: ranks that {why}, so what they send is not known.")
    marks: Marks = {}
    for number, mask in records.findings.items():
        here = np.isin(moved.row, np.unique(way[mask]))
        columns = np.where(moved.cell[here] == NOWHERE, wide - 1, moved.cell[here])
        points = np.unique(source[moved.row[here]] * wide + columns)
        if len(points):
            marks[number] = {0: points.tolist()}
    side = min(720, 260 + 26 * count)
    tick = {"type": "category", "automargin": True, "showgrid": False, "nticks": min(count + 1, 24)}
    layout = {
        "height": side,
        "xaxis": {**tick, "title": {"text": "to", "standoff": 12}},
        "yaxis": {**tick, "title": {"text": "from", "standoff": 12}, "autorange": "reversed"},
    }
    return Figure(data, layout, notes, marks=marks)


def _trace(
    values: list[list[float]], names: list[str], rows: tuple[str, ...], unit: str, place: Nodes, fold: Cells
) -> dict[str, Any]:
    amounts = [value for row in values for value in row if value > 0]
    low, high = min(amounts), max(amounts)
    log = high > _RATIO * low
    ticks = _ticks(low, high, log)
    bar: dict[str, Any] = {
        "title": {"text": f"bytes {unit}", "side": "right"},
        "thickness": 14,
        "tickmode": "array",
    }
    bar["tickvals"] = [round(math.log10(tick), 6) if log else tick for tick in ticks]
    bar["ticktext"] = [human.size(tick) for tick in ticks]

    def words(sender: int, to: int, value: float) -> str:
        where = ""
        if not fold.said and to < len(rows) and place.of[sender] >= 0 and place.of[to] >= 0:
            where = ", within a host" if place.of[sender] == place.of[to] else ", between hosts"
        return f"<b>{literal(rows[sender], 60)} → {names[to]}</b><br>{human.size(value)} {unit}{where}"

    return {
        "type": "heatmap",
        "x": names,
        "y": [literal(name, 40) for name in rows],
        "z": [
            [None if not value else round(math.log10(value), 6) if log else value for value in row]
            for row in values
        ],
        "customdata": [
            [words(sender, to, value) if value else "" for to, value in enumerate(row)]
            for sender, row in enumerate(values)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": False,
        "colorscale": "Cividis",
        "zmin": math.log10(low) if log else 0,
        "zmax": round(math.log10(high), 6) if log else high,
        "colorbar": bar,
        "xgap": 1,
        "ygap": 1,
    }


def _ticks(low: float, high: float, log: bool) -> list[float]:
    if not log:
        return [high * part / 4 for part in range(5)]
    return [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _unseen(unseen: list[list[int | None]], names: list[str], rows: tuple[str, ...]) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "x": names,
        "y": [literal(name, 40) for name in rows],
        "z": unseen,
        "colorscale": _UNSEEN,
        "opacity": 0.35,
        "showscale": False,
        "hoverongaps": False,
        "hovertemplate": "%{y}: no records<extra></extra>",
        "xgap": 1,
        "ygap": 1,
    }
