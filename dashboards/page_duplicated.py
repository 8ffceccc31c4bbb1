"""Figure and table: work done on several ranks or twice on one, against the work that is needed.

What is duplicated the analyses say; the numbers are the evidence of their findings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards import human
from shardtoll.dashboards.figure import PALETTE, TOP_LEGEND, Figure, height, hover, literal
from shardtoll.dashboards.page_bill import safe
from shardtoll.dashboards.page_tables import table
from shardtoll.dashboards.summary import by_severity
from shardtoll.dashboards.text import clip
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.levels import in_steps, surveyed_steps

LEAD: Final = (
    "FLOPs of a step, all ranks seen added up, at each place where findings show the same work done more "
    "than once: what is needed, and what is done beyond it. Some of it is a choice, as a small head that "
    "every rank keeps whole."
)

KINDS: Final = ("duplicated-compute", "duplicated-data")
BARS: Final = 30
"""Places drawn, those with most FLOPs too many."""
SHOWN: Final = 100
"""Rows of the table."""


@dataclass(frozen=True, slots=True)
class Doubled:
    """One finding, its FLOPs out of its evidence; None where it tells none."""

    number: int
    finding: Finding
    done: int | None
    needed: int | None

    @property
    def too_many(self) -> int:
        """FLOPs beyond what is needed."""
        return 0 if self.done is None or self.needed is None else max(0, self.done - self.needed)

    def evidence(self, label: str) -> str:
        """Return the value of a piece of evidence in words; `unknown` where there is none."""
        for item in self.finding.evidence:
            if item.label == label:
                return human.quantity(item.value, item.unit)
        return human.UNKNOWN

    def place(self) -> str:
        """Return layers, phase and line, as far as known, and along what it is repeated."""
        where = self.finding.where
        module = "(root)" if where.module == "" else where.module
        line = None if where.source is None else where.source.rpartition("/")[2]
        parts = [module, where.phase, line if module is None else None, where.op if module is None else None]
        known = [part for part in parts if part]
        return " · ".join(clip(part, 44) for part in known) or "whole step"

    def over(self) -> str:
        """Return which mesh dimensions or group repeat the work, in words."""
        where = self.finding.where
        if where.mesh_dim is not None:
            return f"mesh dim {where.mesh_dim}"
        if where.group is not None:
            return f"group {where.group}"
        return (
            "one rank" if "done again at" in {item.label for item in self.finding.evidence} else human.UNKNOWN
        )


def doubled(report: Report) -> list[Doubled]:
    """Return the findings of duplicated work, the one with most FLOPs too many first."""
    found = []
    for number, finding in by_severity(report.findings):
        if finding.kind in KINDS:
            done, needed = (_flops(finding, f"FLOPs {word} a step") for word in ("done", "needed"))
            found.append(Doubled(number, finding, done, needed))
    return sorted(found, key=lambda one: (-one.too_many, one.number))


def _flops(finding: Finding, label: str) -> int | None:
    for item in finding.evidence:
        if item.label == label and isinstance(item.value, int | float) and item.value >= 0:
            return int(item.value)
    return None


def step_flops(report: Report) -> int | None:
    """Return the FLOPs of all operators on record in a mean surveyed step, all ranks; None without any."""
    steps = surveyed_steps(report.tables["steps"])
    table: pa.Table = in_steps(report.tables["computes"], steps)
    if not table.num_rows or not steps:
        return None
    return round(int(pc.sum(table.column("flops")).as_py()) / len(steps))


def figure(report: Report) -> Figure:
    """Return the bars; nothing to draw without a finding that tells FLOPs."""
    found = doubled(report)
    told = [one for one in found if one.done is not None and one.needed is not None]
    if not found:
        return Figure([], {}, [])
    notes = []
    if len(told) < len(found):
        notes.append(
            f"{human.plural(len(found) - len(told), 'finding')} of duplicated work or data without FLOPs: "
            "only in the table."
        )
    if not told:
        return Figure([], {}, notes)
    every, too_many = step_flops(report), sum(one.too_many for one in told)
    if every:
        notes.insert(
            0,
            f"Of {human.work(every)} a step on all ranks seen, {human.work(too_many)} "
            f"({human.share(too_many, every)}) are done beyond what is needed.",
        )
    if len(told) > BARS:
        rest = sum(one.too_many for one in told[BARS:])
        notes.append(
            f"The {BARS} places with most are drawn; the {len(told) - BARS:,} others, {human.work(rest)} too "
            "many, stand in the table."
        )
        told = told[:BARS]
    # Categories of a bar chart are told apart by name alone.
    names = [_name(one) for one in told]
    words = [_words(one) for one in told]
    needed = _bar("needed", PALETTE["green"], "", names, [one.needed or 0 for one in told], words)
    beyond = _bar(
        "done beyond that", PALETTE["vermillion"], "/", names, [one.too_many for one in told], words
    )
    layout = {
        "barmode": "stack",
        "height": height(len(told), each=46),
        "xaxis": {"title": {"text": "FLOPs a step, all ranks"}, "rangemode": "tozero", "tickformat": "~s"},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
        "legend": TOP_LEGEND,
    }
    marks = {one.number: {0: [at], 1: [at]} for at, one in enumerate(told)}
    return Figure([needed, beyond], layout, notes, marks={at: marks[at] for at in sorted(marks)})


def _name(one: Doubled) -> str:
    over = one.over()
    under = "" if over == human.UNKNOWN else f"<br>{literal(over, 40)}"
    return f"#{one.number} {literal(one.place(), 64)}{under}"


def _bar(
    name: str, colour: str, shape: str, names: list[str], values: list[int], words: list[str]
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": names,
        "x": values,
        "hovertext": words,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {
            "color": colour,
            "pattern": {"shape": shape, "bgcolor": colour, "fgcolor": "#ffffff", "size": 7, "solidity": 0.2},
        },
    }


def _words(one: Doubled) -> str:
    over = one.over()
    repeated = "what repeats it is unknown" if over == human.UNKNOWN else f"over {literal(over, 60)}"
    lines = [f"<b>#{one.number} {literal(one.place())}</b>", repeated]
    if one.finding.where.source:
        lines.append(literal(one.finding.where.source))
    lines.append(f"done {human.work(one.done)}, needed {human.work(one.needed)} a step")
    lines.append(f"toll {human.duration(one.finding.toll_ns)} a step")
    return hover([*lines, f"shown by {literal(one.evidence('shown by'))}"])


def numbers(report: Report) -> str:
    """Return the findings of duplicated work as a table, those without FLOPs too."""
    found = doubled(report)
    if not found:
        return ""
    rows = [
        [
            f'<a href="#finding-{one.number}">{one.number}</a> {one.finding.kind}',
            safe(clip(one.place(), 160)),
            safe(clip(one.finding.where.source or human.UNKNOWN, 160)),
            safe(clip(one.over(), 80)),
            human.work(one.done),
            human.work(one.needed),
            human.duration(one.finding.toll_ns),
            one.finding.confidence,
        ]
        for one in found[:SHOWN]
    ]
    if len(found) > SHOWN:
        rows.append([f"and {len(found) - SHOWN:,} more", *[""] * 7])
    heads = ("finding", "place", "line", "over", "FLOPs done", "FLOPs needed", "toll", "confidence")
    return table(heads, rows, "duplicated work")
