"""Figure and table: the cost of each module of the model per step, as a treemap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from shardtoll.dashboards.facts.calls import Calls, calls
from shardtoll.dashboards.facts.sites import asked
from shardtoll.dashboards.page.html.figure import ASKED, ASKED_WORDS, PALETTE, Figure, Marks, hover, literal
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.html.tables import table
from shardtoll.dashboards.page.views.bytes import module_names
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Report
from shardtoll.ledger.records.layers import layer_pattern
from shardtoll.ledger.words import human

if TYPE_CHECKING:
    import pandas as pd

LEAD: Final = (
    "The toll of each module in a mean step, mean over the ranks. It is the exposed communication that it "
    "caused, and compute that findings show to be repeated. Areas add up from the inside out. Layers that "
    "differ in a "
    "number only are one."
)

LEAVES: Final = 160
"""Leaves drawn; the cheapest others are one."""
SHOWN: Final = 100
"""Rows of the table."""

TWICE: Final = "duplicated compute"
_COLOURS: Final = {**{ASKED_WORDS[name]: colour for name, colour in ASKED.items()}, TWICE: PALETTE["purple"]}
_FRAMES: Final = ("#4d555e", "#636c76")
"""Colours of modules by depth; opaque, so that Plotly chooses a text that can be read on them, by day and
night."""

_OTHER: Final = "cheaper ones"
_UNKNOWN: Final = "no module on record"


@dataclass(slots=True)
class Leaf:
    """Cost of one module, of one kind."""

    path: tuple[str, ...]
    """The module's name by its dots; one part for anything else than a module."""
    what: str
    """The collective, or `TWICE`."""
    how: str
    """A key of the colours."""
    ns: int
    """A mean step's, mean over the ranks."""
    calls: float = 0.0
    """A step and rank."""
    dearest: str = ""
    """The most expensive of several layers."""
    numbers: list[int] = field(default_factory=list)
    """The findings that speak of it, by their numbers on the bill."""


def figure(report: Report) -> Figure:
    """Return the treemap; nothing to draw if no time is known to be lost."""
    records = calls(report)
    leaves, notes = _leaves(report, records)
    if not leaves:
        return Figure([], {}, [])
    total = sum(leaf.ns for leaf in leaves)
    whose = "a mean step, mean over the ranks" if records.steps else "the whole record, mean over the ranks"
    notes.insert(0, f"In all {human.duration(total)}: {whose}.")
    if len(leaves) > LEAVES:
        rest = leaves[LEAVES - 1 :]
        notes.append(
            f"The {LEAVES - 1} most expensive of {len(leaves):,} parts are shown; the others, together "
            f"{human.share(sum(leaf.ns for leaf in rest), total)}, are one."
        )
        leaves = [*leaves[: LEAVES - 1], _together(rest)]
    tree = _Tree(leaves, total)
    marks: Marks = {}
    for leaf, tile in tree.at:
        for number in leaf.numbers:
            marks.setdefault(number, {0: []})[0].append(tile)
    used = [name for name in _COLOURS if any(leaf.how == name for leaf in leaves)]
    layout = {"height": 520, "margin": {"l": 8, "r": 8, "t": 40, "b": 8}, "annotations": _legend(used)}
    return Figure([tree.trace(total)], layout, notes, marks={tile: marks[tile] for tile in sorted(marks)})


def _legend(used: list[str]) -> list[dict[str, Any]]:
    """Return the colours with their words, as a treemap has no legend of its own."""
    entries, left = [], 0
    for name in used:
        entries.append(
            {
                "text": name,
                "x": 0,
                "xshift": left,
                "y": 1,
                "yshift": 26,
                "xref": "paper",
                "yref": "paper",
                "xanchor": "left",
                "showarrow": False,
                "bgcolor": _COLOURS[name],
                "borderpad": 3,
                "font": {"color": "#000000" if name == TWICE else "#ffffff", "size": 12},
            }
        )
        # Room for the word in the page's font, and a gap.
        left += 8 * len(name) + 24
    return entries


def _leaves(report: Report, records: Calls) -> tuple[list[Leaf], list[str]]:
    """Return everything with a cost, the most expensive first, and the notes about it."""
    rows = records.rows
    notes = records.notes()
    untimed = int(rows["untimed"].sum())
    if untimed:
        notes.append(f"{human.plural(untimed, 'collective')} not counted: exposed time is unknown.")
    means = records.rank_steps or max(1, len(report.run.ranks_seen))
    leaves: dict[tuple[str, str, str], Leaf] = {}
    costly = rows.assign(
        name=module_names(rows) if len(rows) else rows["module"],
        how=[ASKED_WORDS[asked(None if flag is None else bool(flag))] for flag in _plain(rows["implicit"])],
    )
    costly = costly[costly["exposed_ns"] > 0]
    for (name, op, how), part in costly.groupby(["name", "op", "how"], sort=False):
        ns = round(int(part["exposed_ns"].sum()) / means)
        named = bool(part["module"].notna().iloc[0])
        path = _path(str(name), named)
        leaf = Leaf(path, str(op), str(how), ns, int(part["calls"].sum()) / means)
        each = part.groupby("module")["exposed_ns"].sum()
        if len(each) > 1:
            top = str(each.index[int(each.to_numpy().argmax())])
            leaf.dearest = f"{top}: {human.duration(int(each.max()) / means)}"
        calls_of_leaf = part.index.to_numpy()
        leaf.numbers = [number for number, mask in records.findings.items() if mask[calls_of_leaf].any()]
        leaves[str(name), str(op), str(how)] = leaf
    doubled = [(n, f) for n, f in enumerate(report.findings, start=1) if f.kind == "duplicated-compute"]
    for number, finding in doubled:
        if not finding.toll_ns:
            continue
        module = finding.where.module
        name = _UNKNOWN if module is None else layer_pattern(module) or "(root)"
        leaf = leaves.setdefault((name, TWICE, TWICE), Leaf(_path(name, module is not None), TWICE, TWICE, 0))
        leaf.ns += finding.toll_ns
        leaf.numbers.append(number)
    unpriced = sum(finding.toll_ns is None for _, finding in doubled)
    if unpriced:
        notes.append(
            f"{human.plural(unpriced, 'finding')} of duplicated compute without a known time not counted."
        )
    kept = sorted((leaf for leaf in leaves.values() if leaf.ns > 0), key=lambda leaf: -leaf.ns)
    return kept, notes


def _plain(column: pd.Series[Any]) -> list[Any]:
    return list(column.astype(object).where(column.notna(), None))


def _path(name: str, module: bool) -> tuple[str, ...]:
    """Return the parts of a module's name, few enough for a picture; anything else than a module has one."""
    if not module:
        return (name,)
    parts = clip(name, 240).split(".")
    return tuple(parts) if len(parts) <= DEEPEST else (*parts[: DEEPEST - 1], ".".join(parts[DEEPEST - 1 :]))


DEEPEST: Final = 12
"""Levels of a module's name that are kept apart."""


def _together(rest: list[Leaf]) -> Leaf:
    numbers = sorted({number for leaf in rest for number in leaf.numbers})
    return Leaf((_OTHER,), f"{len(rest):,} parts", ASKED_WORDS["unknown"], sum(leaf.ns for leaf in rest),
                sum(leaf.calls for leaf in rest), numbers=numbers)  # fmt: skip


class _Tree:
    """The nodes of the treemap: the whole, modules inside it, and leaves inside modules."""

    def __init__(self, leaves: list[Leaf], total: int) -> None:
        self.labels: list[str] = ["all modules"]
        self.parents: list[str] = [""]
        self.values: list[int] = [total]
        self.words: list[str] = [f"<b>all modules</b><br>{human.duration(total)}"]
        self.colours: list[str] = [_FRAMES[0]]
        self.at: list[tuple[Leaf, int]] = []
        self._inside([(leaf, leaf.path) for leaf in leaves], 0, "", total, 1)

    def _inside(
        self, members: list[tuple[Leaf, tuple[str, ...]]], parent: int, name: str, total: int, deep: int
    ) -> None:
        """Add the members, each with the rest of its path, to a node."""
        below: dict[str, list[tuple[Leaf, tuple[str, ...]]]] = {}
        for leaf, path in members:
            if path:
                below.setdefault(path[0], []).append((leaf, path[1:]))
                continue
            lines = [
                f"<b>{literal(name)}</b>",
                f"{literal(leaf.what, 60)}, {leaf.how}" if leaf.how != TWICE else TWICE,
            ]
            lines.append(f"{human.duration(leaf.ns)}, {human.share(leaf.ns, total)} of all that is drawn")
            if leaf.calls:
                lines.append(f"{human.number(float(f'{leaf.calls:.3g}'))} calls per step and rank")
            if leaf.dearest:
                lines.append(f"dearest layer {literal(leaf.dearest)}")
            self.at.append((leaf, len(self.labels)))
            self._add(literal(leaf.what, 40), parent, leaf.ns, hover(lines), _COLOURS[leaf.how])
        for first, inside in below.items():
            label, full = first, f"{name}.{first}" if name else first
            # A module with one part only, and nothing of its own, is not worth a frame.
            while all(path for _, path in inside) and len({path[0] for _, path in inside}) == 1:
                label += f".{inside[0][1][0]}"
                full += f".{inside[0][1][0]}"
                inside = [(leaf, path[1:]) for leaf, path in inside]
            ns = sum(leaf.ns for leaf, _ in inside)
            words = hover([f"<b>{literal(full)}</b>", f"{human.duration(ns)}, {human.share(ns, total)}"])
            tile = self._add(literal(label, 48), parent, ns, words, _FRAMES[deep % 2])
            self._inside(inside, tile, full, total, deep + 1)

    def _add(self, label: str, parent: int, ns: int, words: str, colour: str) -> int:
        self.labels.append(label)
        self.parents.append(str(parent))
        self.values.append(ns)
        self.words.append(words)
        self.colours.append(colour)
        return len(self.labels) - 1

    def trace(self, total: int) -> dict[str, Any]:
        """Return the trace; whole ns, so that parents are the exact sums Plotly wants them to be."""
        return {
            "type": "treemap",
            "ids": [str(tile) for tile in range(len(self.labels))],
            "labels": self.labels,
            "parents": self.parents,
            "values": self.values,
            "branchvalues": "total",
            "text": [f"{human.duration(ns)} · {human.share(ns, total)}" for ns in self.values],
            "textinfo": "label+text",
            # The whole has its label in this one, whatever its colour.
            "outsidetextfont": {"color": "#ffffff"},
            "hovertext": self.words,
            "hovertemplate": "%{hovertext}<extra></extra>",
            "marker": {
                "colors": self.colours,
                "line": {"width": 1},
                "pad": {"t": 22, "l": 4, "r": 4, "b": 4},
            },
            "tiling": {"pad": 2},
            "pathbar": {"visible": False},
            "sort": True,
        }


def numbers(report: Report) -> str:
    """Return the same as a table, the most expensive first."""
    leaves, _ = _leaves(report, calls(report))
    if not leaves:
        return ""
    total = sum(leaf.ns for leaf in leaves)
    rows = [
        [
            safe(clip(".".join(leaf.path), 60)),
            safe(clip(leaf.what, 60)),
            leaf.how if leaf.how != TWICE else "",
            human.duration(leaf.ns),
            human.share(leaf.ns, total),
            safe(clip(leaf.dearest, 120)),
        ]
        for leaf in leaves[:SHOWN]
    ]
    if len(leaves) > SHOWN:
        rows.append([f"and {len(leaves) - SHOWN:,} more", *[""] * 5])
    return table(("module", "what", "asked for", "toll", "share", "dearest layer"), rows, "toll by module")
