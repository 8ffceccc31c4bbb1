"""Figure and table: the bytes of a step, from the module that caused them over the collective to the link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from shardtoll.dashboards.facts.calls import Calls, calls
from shardtoll.dashboards.facts.flows import NOWHERE, flows, folded
from shardtoll.dashboards.facts.nodes import UNKNOWN, nodes
from shardtoll.dashboards.page.html.figure import PALETTE, Figure, hover, literal
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.html.tables import table
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Report
from shardtoll.ledger.records.layers import pattern
from shardtoll.ledger.words import human

if TYPE_CHECKING:
    import pandas as pd

LEAD: Final = (
    "Wire bytes of a mean step, all ranks seen added up. They flow from the module that caused them, over "
    "the collective and its group or mesh dimension, to the link of the assumed algorithm. Layers that "
    "differ in a number only are one module."
)

MODULES: Final = 20
OPS: Final = 14
"""Names shown one by one; what moves less is folded."""

_LINKS: Final = ("within a host", "between hosts", "link unknown")
_COLOURS: Final = (
    PALETTE["sky"],
    PALETTE["orange"],
    PALETTE["green"],
    PALETTE["vermillion"],
    PALETTE["grey"],
)


def figure(report: Report) -> Figure:
    """Return the sankey; nothing to draw if no wire bytes are known."""
    records = calls(report)
    notes = records.notes()
    unsized = int(records.rows["unsized"].sum())
    if unsized:
        every = int(records.rows["calls"].sum())
        notes.append(f"{human.plural(unsized, 'collective')} of {every:,} not counted: the size is unknown.")
    rows, cause = _named(records)
    if rows.empty:
        return Figure([], {}, notes)
    total = int(rows["wire_bytes"].sum())
    modules, words = _fewer(rows["from"], rows["wire_bytes"], MODULES, "module")
    notes += words
    ops, words = _fewer(rows["what"], rows["wire_bytes"], OPS, "collective")
    notes += words
    rows = rows.assign(**{"from": modules, "what": ops})
    amounts, way = _links(report, rows, ("what",))
    drawn = _Drawn(records)
    first = rows.groupby(["from", "what"], sort=False).agg(
        bytes=("wire_bytes", "sum"), calls=("calls", "sum")
    )
    for (source, target), sums in first.sort_values("bytes", ascending=False, kind="stable").iterrows():
        drawn.link((0, str(source)), (1, str(target)), int(sums["bytes"]), int(sums["calls"]))
    sums_of = amounts.groupby(["what", "link"], sort=False)["bytes"].sum()
    second = sums_of.sort_values(ascending=False, kind="stable").reset_index()
    for source, target, amount in second.itertuples(index=False):
        drawn.link((1, str(source)), (2, _LINKS[int(target)]), int(amount), None)
    seen = records.rows["rank"].nunique()
    notes.insert(
        0,
        f"Both sides add up to {human.size(records.per_step(total))} {records.a_step} "
        f"({total:,} B in {human.plural(records.steps, 'step') if records.steps else 'the record'}), all "
        f"wire bytes of {human.plural(seen, 'rank')}.",
    )
    marks = {}
    for number, mask in records.findings.items():
        here = mask[cause]
        pairs = rows.loc[here, ["from", "what"]].drop_duplicates()
        lit = {((0, str(a)), (1, str(b))) for a, b in pairs.itertuples(index=False)}
        ends = amounts.loc[np.isin(amounts["at"], np.unique(way[here])), ["what", "link"]].drop_duplicates()
        lit |= {((1, str(a)), (2, _LINKS[int(b)])) for a, b in ends.itertuples(index=False)}
        if lit:
            marks[number] = {0: sorted(drawn.at[pair] for pair in lit)}
    columns = max(1, *(sum(1 for column, _ in drawn.nodes if column == side) for side in range(3)))
    layout = {"height": 150 + min(30 * columns, 620), "margin": {"l": 16, "r": 16, "t": 24, "b": 24}}
    return Figure([drawn.trace()], layout, notes, marks=marks)


def _named(records: Calls) -> tuple[pd.DataFrame, npt.NDArray[np.int64]]:
    """Return the calls that send something, with the names of module and collective; and which rows of
    `found` they are."""
    sends = (records.rows["wire_bytes"] > 0).to_numpy(dtype=bool)
    rows = records.rows[sends].reset_index(drop=True)
    what = rows["op"] + " ×" + rows["group_size"].astype(str) + " "
    span = rows["mesh_dim"].fillna("group " + rows["group"])
    return rows.assign(**{"from": module_names(rows), "what": what + span}), np.flatnonzero(sends)


def _links(report: Report, rows: pd.DataFrame, by: tuple[str, ...]) -> tuple[pd.DataFrame, Any]:
    """Return the bytes by link with the columns `by`, and for each row which of them (`at`) it is part of.

    Links: 0 within a host, 1 between hosts, 2 unknown.
    """
    import pandas as pd

    rows, way = folded(rows, by)
    place = nodes(report.run)
    # One cell per node, and one for all ranks whose node is unknown.
    moved = flows(report, rows, np.where(place.of == UNKNOWN, len(place.names), place.of))
    sender = place.of[rows["rank"].to_numpy(dtype=np.int64)][moved.row]
    unknown = (moved.cell == NOWHERE) | (moved.cell == len(place.names)) | (sender == UNKNOWN)
    if set(place.of.tolist()) == {0}:
        # All ranks are on one host: whoever gets them.
        unknown &= False
    link = np.where(unknown, 2, np.where((sender == moved.cell) | (moved.cell == NOWHERE), 0, 1))
    amounts = pd.DataFrame({"at": moved.row, "link": link, "bytes": moved.bytes})
    return amounts.assign(**{name: rows[name].to_numpy()[moved.row] for name in by}), way


def module_names(rows: pd.DataFrame) -> pd.Series[Any]:
    """Return the module of each row with its layers folded; without one, words for that and the phase."""

    named = pattern(rows["module"]).replace("", "(root)")
    words = "no module on record, " + rows["phase"].astype("string")
    names: pd.Series[Any] = named.where(named.notna(), words)
    return names


def _fewer(
    names: pd.Series[Any], sizes: pd.Series[Any], most: int, noun: str
) -> tuple[pd.Series[Any], list[str]]:
    """Return the names with all but the largest as one, and a sentence if that was done."""
    sums = sizes.groupby(names, sort=False).sum().sort_values(ascending=False, kind="stable")
    if len(sums) <= most:
        return names, []
    rest = sums.index[most - 1 :]
    other = f"{len(rest):,} other {noun}s"
    moved = human.share(int(sums[rest].sum()), int(sums.sum()))
    return names.where(~names.isin(rest), other), [
        f"The {most - 1} {noun}s that move most are shown; the {len(rest):,} others, folded, move {moved}."
    ]


class _Drawn:
    """Collects nodes and links; a node is its column and name."""

    def __init__(self, records: Calls) -> None:
        self.found = records
        self.nodes: dict[tuple[int, str], int] = {}
        self.at: dict[tuple[tuple[int, str], tuple[int, str]], int] = {}
        self._values: list[float] = []
        self._words: list[str] = []
        self._sums: dict[tuple[int, str], float] = {}

    def link(self, source: tuple[int, str], target: tuple[int, str], total: int, made: int | None) -> None:
        """Add a link of that many bytes in all steps."""
        for node in (source, target):
            self.nodes.setdefault(node, len(self.nodes))
        value = self.found.per_step(total)
        self.at[source, target] = len(self.at)
        self._values.append(value)
        lines = [f"<b>{literal(source[1])}</b> → <b>{literal(target[1])}</b>"]
        lines.append(f"{human.size(value)} {self.found.a_step}")
        if made is not None:
            lines.append(f"{human.number(round(self.found.per_step(made), 2))} calls on all ranks")
        self._words.append(hover(lines))
        if target[0] == 1 or source[0] == 1:
            for node in (source, target):
                if not (node[0] == 1 and target[0] == 2):
                    self._sums[node] = self._sums.get(node, 0) + value

    def trace(self) -> dict[str, Any]:
        """Return the trace; colours show the cause of the collective."""
        names = list(self.nodes)
        colour = [self._colour(node) for node in names]
        links = list(self.at)
        return {
            "type": "sankey",
            "arrangement": "snap",
            "valueformat": ".3s",
            "valuesuffix": "B",
            "textfont": {"size": 12},
            "node": {
                "label": [
                    f"{literal(name, 44)}  {human.size(self._sums[column, name])}" for column, name in names
                ],
                "color": colour,
                "pad": 14,
                "thickness": 16,
                "line": {"width": 0},
                "customdata": [
                    hover(
                        [
                            f"<b>{literal(name)}</b>",
                            f"{human.size(self._sums[column, name])} {self.found.a_step}",
                        ]
                    )
                    for column, name in names
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            },
            "link": {
                "source": [self.nodes[source] for source, _ in links],
                "target": [self.nodes[target] for _, target in links],
                "value": self._values,
                # The colour of its end: an op's links by op, so that they can be followed.
                "color": [f"{colour[self.nodes[target]]}66" for _, target in links],
                "customdata": self._words,
                "hovertemplate": "%{customdata}<extra></extra>",
            },
        }

    def _colour(self, node: tuple[int, str]) -> str:
        column, name = node
        if column == 2:
            return {_LINKS[0]: PALETTE["blue"], _LINKS[1]: PALETTE["vermillion"]}.get(name, PALETTE["grey"])
        if column == 0:
            return PALETTE["grey"]
        op = name.split(" ", 1)[0]
        ops: Sequence[str] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        return _COLOURS[ops.index(op)] if op in ops else PALETTE["purple"]


def numbers(report: Report) -> str:
    """Return the same as a table: one row a module and collective, the largest first."""
    records = calls(report)
    rows, _ = _named(records)
    if rows.empty:
        return ""
    amounts, _ = _links(report, rows, ("from", "what"))
    sums = amounts.groupby(["from", "what", "link"], sort=False)["bytes"].sum()
    wide = sums.unstack("link", fill_value=0)
    wide = wide.assign(total=wide.sum(axis=1)).sort_values("total", ascending=False, kind="stable")
    lines = []
    for (module, op), cells_of in wide.head(SHOWN).iterrows():
        cells = (int(cells_of["total"]), *(int(cells_of.get(way, 0)) for way in range(3)))
        lines.append(
            [
                safe(clip(module, 60)),
                safe(clip(op, 80)),
                *(human.size(records.per_step(cell)) for cell in cells),
            ]
        )
    if len(wide) > SHOWN:
        lines.append([f"and {len(wide) - SHOWN:,} more", "", "", "", "", ""])
    return table(("module", "collective", f"wire bytes {records.a_step}", *_LINKS), lines, "bytes by module")


SHOWN: Final = 100
"""Rows of the table."""
