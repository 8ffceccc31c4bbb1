"""A page with a run's scaling curves and their bands: self-contained, offline, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from shardtoll.dashboards.forecast.scaling_shown import (
    HEADS,
    TITLES,
    efficiency,
    headline,
    known_by,
    machines,
    row,
)
from shardtoll.dashboards.page.html.figure import PALETTE, TOP_LEGEND, Figure, ms
from shardtoll.dashboards.page.html.frame import framed
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.html.tables import table
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.answers.forecast import Scaling, ScalingPoint

_LEAD: Final = (
    "The line is the expected step, the area the band that holds eight of ten runs, the mark what was {}."
)


def render(answer: Scaling) -> str:
    """Return the whole page as text; names are escaped, nothing is fetched."""
    curves = {"weak": answer.weak, "strong": answer.strong}
    figures = {kind: figure(answer, points) for kind, points in curves.items()}
    sections = "".join(_section(kind, curves[kind], _LEAD.format(known_by(answer))) for kind in curves)
    notes = "".join(f"<li>{safe(clip(note, 300))}</li>" for note in answer.notes)
    body = f"""<header>
<h1>shardtoll <span>what the step takes on other machines</span></h1>
<p class="headline fine" id="headline">{safe(headline(answer))}</p>
<p>{safe(clip(answer.run, 200))}; {safe(machines(answer))}</p>
<p>{safe(efficiency(answer))}</p>
<ul>{notes}</ul>
</header>
<main>
{sections}
</main>"""
    return framed("shardtoll forecast", body, figures, marks=False)


def _section(kind: str, points: Sequence[ScalingPoint], lead: str) -> str:
    rows = [[safe(cell) for cell in row(point)] for point in points]
    return f"""<section id="{kind}-section" aria-labelledby="{kind}">
<h2 id="{kind}">{escape(TITLES[kind])}</h2>
<p class="lead">{escape(lead)}</p>
<div class="panel"><div id="{kind}-figure" class="figure"></div></div>
{table([escape(head) for head in HEADS], rows, TITLES[kind])}
</section>
"""


def figure(answer: Scaling, points: Sequence[ScalingPoint]) -> Figure:
    """Return the curve of step times over ranks with its band."""
    ranks = [point.world for point in points]
    if not ranks:
        return Figure([], {}, ["There is no point to draw."])
    low, high = ([ms(getattr(point.step_ns, end)) for point in points] for end in ("low", "high"))
    area: dict[str, Any] = {
        "type": "scatter", "mode": "lines", "name": "80 % band", "x": [*ranks, *reversed(ranks)],
        "y": [*high, *reversed(low)], "fill": "toself", "line": {"width": 0},
        "fillcolor": "rgba(86,180,233,0.3)",
        "hoverinfo": "skip",
    }  # fmt: skip
    line = {
        "type": "scatter", "mode": "lines+markers", "name": "expected", "x": ranks,
        "y": [None if point.unpriced else ms(point.step_ns.expected) for point in points],
        "line": {"color": PALETTE["sky"]},
        "hovertemplate": "%{x} ranks: %{y} ms<extra></extra>",
    }  # fmt: skip
    measured = {
        "type": "scatter", "mode": "markers", "name": known_by(answer), "x": [answer.measured_world],
        "y": [ms(answer.measured_step_ns)],
        "marker": {"color": PALETTE["vermillion"], "symbol": "diamond", "size": 11},
        "hovertemplate": f"{known_by(answer)}, %{{x}} ranks: %{{y}} ms<extra></extra>",
    }  # fmt: skip
    layout = {
        "height": 360,
        "xaxis": {"type": "log", "title": {"text": "ranks"}, "tickvals": ranks},
        "yaxis": {"title": {"text": "ms per step"}, "rangemode": "tozero"},
        "legend": TOP_LEGEND,
    }
    return Figure([area, line, measured], layout)
