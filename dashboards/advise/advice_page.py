"""A page of advice: the answer, memory against speed of the layouts, the path and the tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from shardtoll.dashboards.advise.advice_rows import Section, lines, sections
from shardtoll.dashboards.page.html.figure import PALETTE, TOP_LEGEND, Figure, hover, literal
from shardtoll.dashboards.page.html.frame import framed
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.html.tables import table
from shardtoll.ledger.answers.advice import Advice, Candidate
from shardtoll.ledger.words import human

LEAD = (
    "Each point is a layout: peak memory of a GPU against tokens/s per GPU. The line joins layouts that "
    "no other beats in both. Bars are the forecast's bands, the dashed line is the memory that may be used."
)


def render(advice: Advice) -> str:
    """Return the whole page as text; names are escaped, nothing is fetched."""
    drawn = trade(advice)
    tables = "".join(_table(number, part) for number, part in enumerate(sections(advice)))
    said = "".join(f"<li>{safe(words)}</li>" for words in lines(advice))
    panel = "" if drawn.empty else '<div class="panel"><div id="trade-figure" class="figure"></div></div>'
    body = f"""<header>
<h1>shardtoll <span>which layout, and why</span></h1>
<p class="headline{"" if advice.best is None else " fine"}" id="headline">{safe(advice.headline)}</p>
</header>
<main>
<section id="trade-section" aria-labelledby="trade">
<h2 id="trade">Memory against speed</h2>
<p class="lead">{escape(LEAD)}</p>
{panel}
</section>
{tables}
<section><h2>Batch, input and failures</h2><ul>{said}</ul></section>
</main>"""
    return framed("shardtoll advise", body, {"trade": drawn})


def _table(number: int, part: Section) -> str:
    lead = f'<p class="lead">{safe(part.lead)}</p>' if part.lead else ""
    shown = table(
        [escape(head) for head in part.heads],
        [[safe(cell) for cell in row] for row in part.rows],
        f"table {number + 1}",
    )
    return f"<section><h2>{safe(part.title)}</h2>\n{lead}{shown}</section>\n"


def trade(advice: Advice) -> Figure:
    """Peak memory against tokens/s: the front, other layouts, the advised and the current one."""
    if advice.best is None:
        return Figure([], {})
    shown = {each.words for each in advice.pareto}
    rest = [each for each in (*advice.ties, *advice.others) if each.words not in shown]
    data = [
        _points("no layout beats these in both", advice.pareto, PALETTE["blue"], "circle", lines=True),
        _points("other layouts", rest, PALETTE["grey"], "circle-open"),
        _points("advised", [advice.best], PALETTE["green"], "star"),
    ]
    if advice.current is not None:
        data.append(
            _points(
                "asked about" if advice.asked else "in use",
                [advice.current],
                PALETTE["vermillion"],
                "diamond",
            )
        )
    limit = advice.question.memory_share * advice.capacity_bytes / 1e9
    layout = {
        "xaxis": {"title": {"text": "peak memory of a GPU, GB"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "tokens/s per GPU"}, "rangemode": "tozero"},
        "height": 420,
        "legend": TOP_LEGEND,
        "shapes": [
            {
                "type": "line",
                "x0": limit,
                "x1": limit,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"dash": "dash"},
            }
        ],
    }
    return Figure([each for each in data if each["x"]], layout)


def _points(
    name: str, candidates: Sequence[Candidate], colour: str, symbol: str, *, lines: bool = False
) -> dict[str, Any]:
    rates = [each.tokens_per_s_gpu for each in candidates]
    return {
        "type": "scatter",
        "mode": "lines+markers" if lines else "markers",
        "name": name,
        "x": [round(each.memory_bytes / 1e9, 3) for each in candidates],
        "y": [round(each.expected, 1) for each in rates],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [round(each.high - each.expected, 1) for each in rates],
            "arrayminus": [round(each.expected - each.low, 1) for each in rates],
            "thickness": 1,
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [round((each.memory_high_bytes - each.memory_bytes) / 1e9, 3) for each in candidates],
            "arrayminus": [0 for _ in candidates],
            "thickness": 1,
        },
        "hovertext": [
            hover([f"<b>{literal(each.words)}</b>", f"{each.tokens_per_s_gpu.expected:,.0f} tokens/s per GPU",
                   f"{human.size(each.memory_bytes)}, upper band {human.size(each.memory_high_bytes)}"])
            for each in candidates
        ],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": colour, "symbol": symbol, "size": 11},
    }  # fmt: skip
