"""A page of measured sweeps with the model's line and band: self-contained, offline, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from shardtoll.dashboards.fabrics.sweep_figure import figure
from shardtoll.dashboards.fabrics.sweep_lines import LEGEND, ErrorLine, SweepLine, SweepTable
from shardtoll.dashboards.page.html.figure import Figure
from shardtoll.dashboards.page.html.frame import framed
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.words import human

_LEAD: Final = (
    "Marks are measured times, the line is the model. The area is the band that should hold nine of ten "
    "marks. Below, the same as measured over predicted: 1 is a perfect answer. Hollow marks "
    "were given to the model and are not scored."
)


def render(table: SweepTable) -> str:
    """Return the whole page as text; names are escaped, nothing is fetched, equal input gives equal bytes."""
    figures = {f"sweep{number}": figure(sweep) for number, sweep in enumerate(table.sweeps)}
    sections = "".join(
        # The errors of a single sweep stand under the totals already.
        _section(name, sweep, figures[name], errors=len(table.sweeps) > 1)
        for name, sweep in zip(figures, table.sweeps, strict=True)
    )
    totals = "".join(
        f"<h4>{_text(f'{mode}: {table.over(mode)}')}</h4>\n{_error_table(errors)}"
        for mode, errors in table.totals
        if errors[-1].count
    )
    totals = f'{totals}<p class="note">{escape(LEGEND)}</p>' if totals else "<p>Nothing is predicted.</p>"
    body = f"""<header>
<h1>shardtoll <span>what the cost model says, and what was measured</span></h1>
<p class="lead">{escape(_LEAD)}</p>
</header>
<main>
<section id="totals-section" aria-labelledby="totals">
<h2 id="totals">Errors by size</h2>
{totals}
</section>
{sections}
</main>"""
    title = f"shardtoll: the model and {human.plural(len(table.sweeps), 'measured sweep')}"
    return framed(title, body, figures, marks=False)


def _section(name: str, sweep: SweepLine, drawn: Figure, *, errors: bool) -> str:
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in drawn.notes)
    drawing = f'<div class="panel"><div id="{name}-figure" class="figure"></div></div>'
    fabric = f"fabric {sweep.fabric} ({sweep.sure})" if sweep.fabric else "no fabric"
    lead = f"{sweep.title()}, {sweep.hardware or 'hardware not named'}; {fabric}: {sweep.mode_words()}"
    return f"""<section id="{name}-section" aria-labelledby="{name}">
<h2 id="{name}">{_text(sweep.file)}</h2>
<p class="lead">{_text(lead)}</p>
{"" if drawn.empty else drawing}
{notes}{_error_table(sweep.errors) if errors and sweep.predicted else ""}
<details class="more"><summary>The same as a table</summary>{_size_table(sweep)}</details>
</section>
"""


def _error_table(errors: Sequence[ErrorLine]) -> str:
    heads = (
        "band",
        "sizes",
        "median error",
        "p90",
        "in band",
        "below floor",
        "below light",
        "width",
        "noise median",
        "noise p90",
    )
    rows = [
        (
            line.band,
            str(line.count),
            *map(_percent, (line.median, line.p90, line.inside, line.below_floor, line.below_light)),
            human.factor(line.width),
            *map(_percent, (line.noise_median, line.noise_p90)),
        )
        for line in errors
        if line.count
    ]
    return _html_table(heads, rows)


def _percent(part: float | None) -> str:
    return "-" if part is None else human.share(part, 1)


def _size_table(sweep: SweepLine) -> str:
    heads = ("size", "measured", "expected", "low", "high", "floor", "speed of light", "by")
    rows = [
        (
            human.size(size.message_bytes),
            *map(
                human.duration,
                (
                    size.measured_ns,
                    size.predicted_ns,
                    size.low_ns,
                    size.high_ns,
                    size.floor_ns,
                    size.light_ns,
                ),
            ),
            " ".join(part for part in (size.algorithm, size.protocol) if part),
        )
        for size in sweep.sizes
    ]
    return _html_table(heads, rows)


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(value: str) -> str:
    return escape(clip(value, 400))
