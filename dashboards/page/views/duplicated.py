"""Figure and table: work done on several ranks or twice on one, against the work that is needed.

The analyses decide which work is duplicated; the numbers are the evidence of their findings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from shardtoll.dashboards.page.html.figure import PALETTE, TOP_LEGEND, Figure, bars, height, hover, literal
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.html.tables import table
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.records.levels import in_steps, surveyed_steps
from shardtoll.ledger.records.work import total_flops
from shardtoll.ledger.words import human

LEAD: Final = (
    "FLOPs per step, all ranks seen added up, at each place where findings show repeated work: the needed "
    "part and the rest. Some of it is a choice, as a small head that every rank keeps whole."
)

KINDS: Final = ("duplicated-compute", "duplicated-data")
BARS: Final = 30
"""Places drawn, those with most FLOPs too many."""
SHOWN: Final = 100
"""Rows of the table."""


@dataclass(frozen=True, slots=True)
class Doubled:
    """One finding, with its FLOPs from its evidence; None if it has none."""

    number: int
    finding: Finding
    done: int | None
    needed: int | None

    @property
    def too_many(self) -> int:
        """FLOPs beyond what is needed."""
        return 0 if self.done is None or self.needed is None else max(0, self.done - self.needed)

    def evidence(self, label: str) -> str:
        """Return the value of a piece of evidence in words; `unknown` if there is none."""
        for item in self.finding.evidence:
            if item.label == label:
                return human.quantity(item.value, item.unit)
        return human.UNKNOWN

    def place(self) -> str:
        """Return layers, phase and line, as far as known, and the dimension along which it is repeated."""
        where = self.finding.where
        module = "(root)" if where.module == "" else where.module
        line = None if where.source is None else where.source.rpartition("/")[2]
        parts = [module, where.phase, line if module is None else None, where.op if module is None else None]
        named = [part for part in parts if part]
        return " · ".join(clip(part, 44) for part in named) or "whole step"

    def over(self) -> str:
        """Return which mesh dimensions or group repeat the work, in words."""
        where = self.finding.where
        if where.mesh_dim is not None:
            return f"mesh dim {where.mesh_dim}"
        if where.group is not None:
            return f"group {where.group}"
        return human.UNKNOWN if self.finding.figure("times_on_one_rank") is None else "one rank"


def doubled(report: Report) -> list[Doubled]:
    """Return the findings of duplicated work, the one with most FLOPs too many first."""
    works = []
    for number, finding in enumerate(report.findings, start=1):
        if finding.kind in KINDS:
            works.append(
                Doubled(number, finding, _flops(finding, "flops_done"), _flops(finding, "flops_needed"))
            )
    return sorted(works, key=lambda work: (-work.too_many, work.number))


def _flops(finding: Finding, name: str) -> int | None:
    flops = finding.figure(name)
    return None if flops is None else int(flops)


def step_flops(report: Report) -> int | None:
    """Return the FLOPs of all operators on record in a mean surveyed step, all ranks; None without any."""
    steps = surveyed_steps(report.tables["steps"])
    table: pa.Table = in_steps(report.tables["computes"], steps)
    if not table.num_rows or not steps:
        return None
    return round(total_flops(table) / len(steps))


def figure(report: Report) -> Figure:
    """Return the bars; nothing to draw without a finding that has FLOPs."""
    works = doubled(report)
    shown = [work for work in works if work.done is not None and work.needed is not None]
    if not works:
        return Figure([], {}, [])
    notes = []
    if len(shown) < len(works):
        notes.append(
            f"{human.plural(len(works) - len(shown), 'finding')} of duplicated work or data without FLOPs: "
            "only in the table."
        )
    if not shown:
        return Figure([], {}, notes)
    every, too_many = step_flops(report), sum(work.too_many for work in shown)
    if every:
        notes.insert(
            0,
            f"{human.work(too_many)} ({human.share(too_many, every)}) of the {human.work(every)} per step "
            "on all ranks seen are needless.",
        )
    if len(shown) > BARS:
        rest = sum(work.too_many for work in shown[BARS:])
        notes.append(
            f"The {BARS} places with most are drawn; the {len(shown) - BARS:,} others, {human.work(rest)} "
            "too many, stand in the table."
        )
        shown = shown[:BARS]
    # Categories of a bar chart differ by name alone.
    names = [_name(work) for work in shown]
    words = [_words(work) for work in shown]
    needed = bars("needed", names, [work.needed or 0 for work in shown], words, PALETTE["green"], "")
    too_much = [work.too_many for work in shown]
    beyond = bars("done beyond that", names, too_much, words, PALETTE["vermillion"], "/")
    layout = {
        "barmode": "stack",
        "height": height(len(shown), each=46),
        "xaxis": {"title": {"text": "FLOPs per step, all ranks"}, "rangemode": "tozero", "tickformat": "~s"},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
        "legend": TOP_LEGEND,
    }
    marks = {work.number: {0: [bar], 1: [bar]} for bar, work in enumerate(shown)}
    return Figure([needed, beyond], layout, notes, marks={bar: marks[bar] for bar in sorted(marks)})


def _name(work: Doubled) -> str:
    over = work.over()
    under = "" if over == human.UNKNOWN else f"<br>{literal(over, 40)}"
    return f"#{work.number} {literal(work.place(), 64)}{under}"


def _words(work: Doubled) -> str:
    over = work.over()
    repeated = "what repeats it is unknown" if over == human.UNKNOWN else f"over {literal(over, 60)}"
    lines = [f"<b>#{work.number} {literal(work.place())}</b>", repeated]
    if work.finding.where.source:
        lines.append(literal(work.finding.where.source))
    lines.append(f"done {human.work(work.done)}, needed {human.work(work.needed)} per step")
    lines.append(f"toll {human.duration(work.finding.toll_ns)} per step")
    return hover([*lines, f"shown by {literal(work.evidence('shown by'))}"])


def numbers(report: Report) -> str:
    """Return the findings of duplicated work as a table, those without FLOPs too."""
    works = doubled(report)
    if not works:
        return ""
    rows = [
        [
            f'<a href="#finding-{work.number}">{work.number}</a> {work.finding.kind}',
            safe(clip(work.place(), 160)),
            safe(clip(work.finding.where.source or human.UNKNOWN, 160)),
            safe(clip(work.over(), 80)),
            human.work(work.done),
            human.work(work.needed),
            human.duration(work.finding.toll_ns),
            work.finding.confidence,
        ]
        for work in works[:SHOWN]
    ]
    if len(works) > SHOWN:
        rows.append([f"and {len(works) - SHOWN:,} more", *[""] * 7])
    heads = ("finding", "place", "line", "over", "FLOPs done", "FLOPs needed", "toll", "confidence")
    return table(heads, rows, "duplicated work")
