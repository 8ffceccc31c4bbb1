"""A waterfall from one step to another, change by change: data for Plotly."""

from __future__ import annotations

from collections.abc import Sequence

from shardtoll.dashboards.page.html.figure import PALETTE, Figure, Marks, height, hover, literal, ms
from shardtoll.ledger.words import human

Step = tuple[str, int, int | None]
"""Name, the step's time after it, number of its finding."""


def waterfall(begins: tuple[str, int], falls: Sequence[Step], ends: Sequence[Step]) -> Figure:
    """Return bars from the time today over what each change takes off, to the times in `ends`."""
    names, values, measures, texts = [literal(begins[0], 60)], [ms(begins[1])], ["absolute"], []
    texts.append(hover([f"<b>{literal(begins[0], 60)}</b>", human.duration(begins[1])]))
    before = begins[1]
    marks: Marks = {}
    for name, step_ns, number in falls:
        if number is not None:
            marks[number] = {0: [len(names)]}
        names.append(literal(name, 60))
        values.append(ms(step_ns - before))
        measures.append("relative")
        gained = human.duration(abs(step_ns - before))
        word = "less" if step_ns <= before else "more"
        texts.append(
            hover([f"<b>{literal(name, 60)}</b>", f"{gained} {word}", f"then {human.duration(step_ns)}"])
        )
        before = step_ns
    for name, step_ns, _ in ends:
        names.append(literal(name, 60))
        values.append(ms(step_ns))
        measures.append("absolute")
        texts.append(hover([f"<b>{literal(name, 60)}</b>", human.duration(step_ns)]))
    trace = {
        "type": "waterfall",
        "orientation": "h",
        "y": names,
        "x": values,
        "measure": measures,
        "hovertext": texts,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "decreasing": {"marker": {"color": PALETTE["green"]}},
        "increasing": {"marker": {"color": PALETTE["vermillion"]}},
        "totals": {"marker": {"color": PALETTE["blue"]}},
        "connector": {"line": {"color": PALETTE["grey"], "width": 1}},
    }
    layout = {
        "height": height(len(names)),
        "xaxis": {"title": {"text": "ms per step"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
        "showlegend": False,
    }
    return Figure([trace], layout, marks=marks)
