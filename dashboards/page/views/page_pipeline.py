"""Figure and table: the stages of a pipeline in time, with the bubbles between their work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shardtoll.dashboards.facts.pipeline_parts import MOVING, WAITING, WORK, Part, messages_of, parts_of
from shardtoll.dashboards.page.html.figure import PALETTE, TOP_LEGEND, Figure, Marks, height, hover, ms
from shardtoll.dashboards.page.html.tables import table
from shardtoll.ledger import Report
from shardtoll.ledger.answers.pipeline import Pipelines
from shardtoll.ledger.words import human

if TYPE_CHECKING:
    import pandas as pd

LEAD: Final = (
    "One step of the pipeline, one row per stage: forward and backward of its micro-batches, numbered if "
    "known. In a bubble a stage waits in a message for the other end. The share next to a stage is its "
    "bubble in a mean step."
)

STAGES: Final = 32
BARS: Final = 3000
"""More are joined if they stand close together."""
SHOWN: Final = 64
"""Rows of the table."""

_REASONS: Final = (
    ("idle_ns", "idle in the schedule"),
    ("recv_ns", "waiting in recv"),
    ("send_ns", "waiting in send"),
)

_COLOURS: Final = {
    "forward": PALETTE["blue"],
    "backward": PALETTE["orange"],
    "recompute": PALETTE["vermillion"],
    "optimizer": PALETTE["purple"],
    "other": PALETTE["green"],
    WAITING: PALETTE["yellow"],
    MOVING: PALETTE["sky"],
}


def figure(report: Report) -> Figure:
    """Return the chart; nothing to draw without a pipeline."""
    pipelines = report.pipelines
    if pipelines is None:
        return Figure([], {}, [])
    messages = messages_of(report, pipelines)
    step = _middle(report, pipelines, messages)
    if step is None:
        return Figure([], {}, [])
    ranks, notes = _stages(pipelines, set(messages["rank"].unique()))
    notes = [f"Step {step} is drawn, the one in the middle by duration.", *notes]
    here = messages[messages["step"] == step]
    parts = []
    for rank in ranks:
        parts += parts_of(report, here[here["rank"] == rank], step, rank, pipelines.micro_batches)
    if not parts:
        return Figure([], {}, [])
    parts, words = _joined(parts)
    notes += words
    if not any(part.kind in WORK for part in parts):
        notes.append("The stages' compute is not on record, so only messages are drawn.")
    elif report.tables["computes"].num_rows == 0:
        notes.append(
            "Work is drawn up to the message it led to; what follows a stage's last message is not on record."
        )
    if any(stage.idle_ns for stage in pipelines.stages):
        notes.append("Idle time inside the schedule counts as bubble too; where it lies is not on record.")
    first = min(part.start_ns for part in parts)
    names = {rank: _name(pipelines, rank) for rank in ranks}
    data: list[dict[str, Any]] = []
    marks = _Marks(report, here)
    for kind in (*WORK, MOVING, WAITING):
        of_kind = [part for part in parts if part.kind == kind]
        if of_kind:
            marks.trace(len(data), of_kind)
            data.append(_trace(kind, of_kind, names, first))
    layout = {
        "barmode": "overlay",
        "bargap": 0.25,
        "height": height(len(ranks), each=44),
        "xaxis": {"title": {"text": "ms since the step's first work or message"}, "zeroline": False},
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [names[rank] for rank in ranks],
            "autorange": "reversed",
            "automargin": True,
            "showgrid": False,
        },
        "legend": TOP_LEGEND,
    }
    return Figure(data, layout, notes, marks=marks.found)


def _trace(kind: str, parts: list[Part], names: dict[int, str], first: int) -> dict[str, Any]:
    texts = []
    for part in parts:
        batch = "" if part.batch is None else f" of micro-batch {part.batch}"
        lines = [f"<b>{names[part.rank]}</b>", f"{kind}{batch}", human.duration(part.end_ns - part.start_ns)]
        texts.append(hover(lines))
    colour = _COLOURS[kind]
    marker: dict[str, Any] = {"color": colour, "line": {"width": 0}}
    if kind == WAITING:
        # Not by colour alone.
        marker["pattern"] = {
            "shape": "x",
            "bgcolor": colour,
            "fgcolor": "#000000",
            "size": 6,
            "solidity": 0.25,
        }
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [names[part.rank] for part in parts],
        "base": [ms(part.start_ns - first) for part in parts],
        "x": [ms(part.end_ns - part.start_ns) for part in parts],
        "text": ["" if part.batch is None else str(part.batch) for part in parts],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "hovertext": texts,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": marker,
    }


def _name(pipelines: Pipelines, rank: int) -> str:
    places = {line.index(rank) for line in pipelines.lines if rank in line}
    who = f"stage {places.pop()}, rank {rank}" if len(places) == 1 else f"rank {rank}"
    lost_ns = next((stage.lost_ns for stage in pipelines.stages if stage.rank == rank), None)
    return f"{who}: {human.share(lost_ns, pipelines.step_ns)}"


def _stages(pipelines: Pipelines, seen: set[int]) -> tuple[list[int], list[str]]:
    """Return the ranks drawn, pipeline by pipeline, and a note about the others."""
    shown: list[int] = []
    lines = [line for line in pipelines.lines if seen & set(line)]
    for line in lines:
        if not shown or len(shown) + len(line) <= STAGES:
            shown += [rank for rank in line if rank not in shown]
    every = {rank for line in lines for rank in line}
    cut = len(every) - len(shown[:STAGES])
    words = [f"{human.plural(cut, 'other rank')} of the {len(lines)} pipelines not drawn."] if cut else []
    return shown[:STAGES], words


def _middle(report: Report, pipelines: Pipelines, messages: pd.DataFrame) -> int | None:
    """Return the step in the middle by its duration on the slowest rank, of those the bubble is of."""
    steps = report.steps
    steps = steps[steps["step"].isin(pipelines.steps) & steps["step"].isin(messages["step"])]
    if steps.empty:
        return None
    each = steps.groupby("step")["duration_ns"].max().sort_values(kind="stable")
    return int(each.index[(len(each) - 1) // 2])


def _joined(parts: list[Part]) -> tuple[list[Part], list[str]]:
    """Return few enough parts, those of one rank and kind that stand close together as one."""
    if len(parts) <= BARS:
        return parts, []
    span = max(part.end_ns for part in parts) - min(part.start_ns for part in parts)
    gap, joined = max(1, span // 100_000), parts
    while len(joined) > BARS and gap < span:
        last: dict[tuple[int, str], int] = {}
        joined, gap = [], gap * 4
        for part in parts:
            index = last.get((part.rank, part.kind))
            if index is not None and part.start_ns - joined[index].end_ns <= gap:
                joined[index] = Part(
                    part.rank,
                    part.kind,
                    joined[index].start_ns,
                    max(joined[index].end_ns, part.end_ns),
                )
            else:
                last[part.rank, part.kind] = len(joined)
                joined.append(part)
    return joined[:BARS], [f"Parts of one kind less than {human.duration(gap)} apart are drawn as one."]


class _Marks:
    """Which bars a finding speaks of: a bubble's waits, a slow stage's work, else its messages."""

    def __init__(self, report: Report, messages: Any) -> None:
        self.found: Marks = {}
        self._findings = list(enumerate(report.findings, start=1))
        self._spans: dict[int, dict[int, tuple[Any, Any]]] = {}
        timed = messages[messages["start_ns"].notna() & messages["duration_ns"].notna()]
        for number, finding in self._findings:
            if finding.kind.startswith("pipeline-") or not finding.rows.collectives:
                continue
            mask = finding.rows.mask("collectives", report.tables["collectives"].num_rows)
            rows = timed[mask[timed.index.to_numpy()]]
            if rows.empty:
                continue
            self._spans[number] = {
                int(rank): (
                    part["start_ns"].to_numpy(dtype=np.int64),
                    (part["start_ns"] + part["duration_ns"]).to_numpy(dtype=np.int64),
                )
                for rank, part in rows.groupby("rank")
            }

    def trace(self, first: int, parts: list[Part]) -> None:
        """Fill in the marks of one trace, all of one kind."""
        kind = parts[0].kind
        for number, finding in self._findings:
            if finding.kind == "pipeline-bubble":
                lit = [i for i, part in enumerate(parts) if kind == WAITING and part.rank in finding.ranks]
            elif finding.kind == "pipeline-imbalance":
                lit = [i for i, part in enumerate(parts) if kind in WORK and part.rank in finding.ranks]
            elif number in self._spans and kind not in WORK:
                lit = [i for i, part in enumerate(parts) if self._meets(number, part)]
            else:
                continue
            if lit:
                self.found.setdefault(number, {})[first] = lit

    def _meets(self, number: int, part: Part) -> bool:
        spans = self._spans[number].get(part.rank)
        return spans is not None and bool(((spans[0] < part.end_ns) & (spans[1] > part.start_ns)).any())


def numbers(report: Report) -> str:
    """Return the bubble of every stage as a table."""
    pipelines = report.pipelines
    if pipelines is None:
        return ""
    stages = {stage.rank: stage for stage in pipelines.stages}
    reasons = [
        (name, words) for name, words in _REASONS if any(getattr(stage, name) for stage in pipelines.stages)
    ]
    rows = []
    every = [(line, place, rank) for line in pipelines.lines for place, rank in enumerate(line)]
    for line, place, rank in every[:SHOWN]:
        stage = stages.get(rank)
        lost_ns = None if stage is None else stage.lost_ns
        cells = [human.duration(None if stage is None else getattr(stage, name)) for name, _ in reasons]
        where = f"{place} of {human.runs(line)}" if len(pipelines.lines) > 1 else str(place)
        share = human.share(lost_ns, pipelines.step_ns)
        rows.append([where, str(rank), share, human.duration(lost_ns), *cells])
    if len(every) > SHOWN:
        rows.append([f"and {len(every) - SHOWN:,} more", *[""] * (3 + len(reasons))])
    return table(
        ("stage", "rank", "bubble, share of the step", "bubble per step", *(words for _, words in reasons)),
        rows,
        "bubble by stage",
    )
