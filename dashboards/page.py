"""One self-contained HTML page: the bill, the step, the roofline and the timeline, offline.

The same report gives the same bytes. The page may not load anything: its content policy allows
the two scripts written into it, by their hashes, and no address at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from html import escape
from typing import Final

from plotly.offline import get_plotlyjs

from shardtoll.dashboards import (
    page_anatomy,
    page_hta,
    page_late,
    page_light,
    page_operators,
    page_roofline,
    page_tables,
    page_timeline,
    summary,
)
from shardtoll.dashboards.figure import ASKED_LEAD, Figure
from shardtoll.dashboards.page_bill import bill, safe
from shardtoll.dashboards.page_script import SCRIPT
from shardtoll.dashboards.page_style import STYLE
from shardtoll.dashboards.sites import sites
from shardtoll.dashboards.text import clip
from shardtoll.ledger import Report

_TIMELINE: Final = (
    "One row a rank. Drag to zoom, double-click to go back. Orange under a collective is its exposed time: "
    "the length is measured, its place inside the collective is not, and it is drawn at the end. Hatched "
    "yellow is waiting for the last rank to arrive. " + ASKED_LEAD
)
_ROOFLINE: Final = (
    "One mark for all calls with the same cause and size. Solid grey lines are the ceilings: the bus "
    "bandwidth at the fabric's floor; dotted ones what the links could carry, the speed of light. Small "
    "hollow marks on a line tell its collective. Far below its ceiling means slow; far left means small "
    "messages, which cost latency. " + ASKED_LEAD
)


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    title: str
    lead: str
    figure: Figure
    numbers: str
    """The same as a table, in HTML."""
    alone: bool = False
    """The table says something where nothing can be drawn, too."""


def render(report: Report) -> str:
    """Return the whole page as text. Encode it as UTF-8."""
    found = sites(report)
    sections = [
        _Section(
            "anatomy",
            "Where the step goes",
            _anatomy_lead(report),
            page_anatomy.figure(report),
            page_tables.steps(report),
        ),
        _Section(
            "roofline",
            "What the fabric allows",
            _ROOFLINE,
            page_roofline.figure(found),
            page_tables.sites(found),
        ),
        *_hardware(report),
        _Section("timeline", "The ranks in time", _TIMELINE, page_timeline.figure(report), ""),
    ]
    figures = {
        part.name: {
            "data": part.figure.data,
            "layout": part.figure.layout,
            "strings": part.figure.strings,
            "columns": part.figure.columns,
        }
        for part in sections
        if not part.figure.empty
    }
    plotly = get_plotlyjs()
    links = "".join(f'<a href="#{part.name}">{part.title}</a>' for part in sections)
    fine = " fine" if not report.findings else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(plotly, SCRIPT)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>shardtoll: {escape(summary.headline(report))}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>shardtoll <span>what each collective of a training step costs</span></h1>
<p class="headline{fine}" id="headline">{safe(summary.headline(report))}</p>{_fault(report)}
<dl class="facts">{page_tables.facts(report)}</dl>
<nav aria-label="sections"><a href="#bill">The bill</a>{links}</nav>
</header>
<main>
<section id="bill-section" aria-labelledby="bill">
<h2 id="bill">The bill</h2>
<p class="lead">Errors first, then by toll. Times and bytes are per step, each on the rank where it is
largest.</p>
{bill(report)}
</section>
{"".join(_section(part) for part in sections)}
{page_late.section(report)}{page_hta.section(report)}{page_tables.notices(report)}
</main>
<noscript><p>The figures need JavaScript; the tables hold the same numbers.</p></noscript>
<script type="application/json" id="figures">{embedded(figures)}</script>
<script>{plotly}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _hardware(report: Report) -> list[_Section]:
    """Return the sections on what the hardware allows; none in reports without."""
    found = report.roofline
    if found is None or not found.ranks:
        return []
    light, drawn = page_light.figure(found), page_operators.figure(found)
    parts = [
        _Section(
            "light", "What the hardware allows", page_light.LEAD, light, page_light.numbers(found), alone=True
        )
    ]
    if found.ops:
        title = "Operators under the roofline"
        parts.append(
            _Section(
                "operators", title, page_operators.LEAD, drawn, page_operators.numbers(found), alone=True
            )
        )
    return parts


def _anatomy_lead(report: Report) -> str:
    """Return what the parts are the mean of; steps that were only watched are not divided."""
    levels = summary.levels(report)
    if levels is None:
        return "Mean over the steps. The parts of a rank add up to its step."
    if summary.surveyed_count(report):
        return (
            f"{levels}. The parts are the mean over the surveyed steps and add up to them; of watched steps "
            "time and exposed communication are known, as the table says."
        )
    return f"{levels}. In a watched step what is not exposed communication is unattributed."


def _fault(report: Report) -> str:
    """Return the analyses' own sentence as a paragraph; nothing where there is none."""
    return f'\n<p class="fault" id="fault">{safe(clip(report.headline, 600))}</p>' if report.headline else ""


def embedded(value: object) -> str:
    """Return JSON that nothing inside a script element can end: `<`, `>` and `&` are escaped."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def policy(*scripts: str) -> str:
    """Return the content policy of a page that runs these scripts, by their hashes, and loads nothing."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    # Plotly writes style elements, and makes pictures from blobs; images may come from the page only.
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _section(part: _Section) -> str:
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in part.figure.notes)
    drawing = f'<div class="panel"><div id="{part.name}-figure" class="figure"></div></div>'
    numbers = ""
    if part.numbers and (part.alone or not part.figure.empty):
        words = "What is known, as a table" if part.figure.empty else "The same as a table"
        numbers = f'<details class="more"><summary>{words}</summary>{part.numbers}</details>'
    return f"""<section id="{part.name}-section" aria-labelledby="{part.name}">
<h2 id="{part.name}">{part.title}</h2>
<p class="lead">{escape(part.lead)}</p>
{"" if part.figure.empty else drawing}
{notes}{numbers}
</section>
"""
