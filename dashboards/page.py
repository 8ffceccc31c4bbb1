"""One self-contained HTML page: the bill, the step, the roofline and the timeline, offline.

The same report gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from shardtoll.dashboards import page_hta, page_late, page_tables, summary
from shardtoll.dashboards.figure import Figure
from shardtoll.dashboards.page_bill import bill, safe
from shardtoll.dashboards.page_frame import framed
from shardtoll.dashboards.text import clip
from shardtoll.dashboards.views import VIEWS, View
from shardtoll.ledger import Report


@dataclass(frozen=True, slots=True)
class _Section:
    view: View
    figure: Figure
    numbers: str


def render(report: Report) -> str:
    """Return the whole page as text. Encode it as UTF-8."""
    sections = _sections(report)
    links = "".join(f'<a href="#{part.view.name}">{part.view.title}</a>' for part in sections)
    fine = " fine" if not report.findings else ""
    body = f"""<header>
<h1>shardtoll <span>what each collective of a training step costs</span></h1>
<p class="headline{fine}" id="headline">{safe(summary.headline(report))}</p>{_fault(report)}
<dl class="facts">{page_tables.facts(report)}</dl>
<nav aria-label="sections"><a href="#bill">The bill</a>{links}</nav>
</header>
<div class="lamp" id="picked"><p id="picked-words" aria-live="polite"></p>
<button type="button" id="picked-clear" hidden>clear</button></div>
<main>
<section id="bill-section" aria-labelledby="bill">
<h2 id="bill">The bill</h2>
<p class="lead">Errors first, then by toll. Times and bytes are per step, each on the rank where it is
largest. Open a finding, and every figure shows what it speaks of; Escape puts that out. In a figure a click
on a mark opens its dearest finding; arrow keys step from mark to mark, and Enter opens that finding.</p>
{bill(report)}
</section>
{"".join(_section(part) for part in sections)}
{page_late.section(report)}{page_hta.section(report)}{page_tables.notices(report)}
</main>
<p id="told" class="unseen" aria-live="polite"></p>"""
    figures = {part.view.name: part.figure for part in sections}
    return framed(f"shardtoll: {escape(summary.headline(report))}", body, figures)


def _sections(report: Report) -> list[_Section]:
    """Return the views that have something to say of this report."""
    found = []
    for view in VIEWS:
        figure = view.figure(report)
        shown = view.numbers is not None and (view.alone or not figure.empty)
        numbers = view.numbers(report) if view.numbers is not None and shown else ""
        if not figure.empty or figure.notes or numbers:
            found.append(_Section(view, figure, numbers))
    return found


def _fault(report: Report) -> str:
    """Return the analyses' own sentence as a paragraph; nothing where there is none."""
    return f'\n<p class="fault" id="fault">{safe(clip(report.headline, 600))}</p>' if report.headline else ""


def _section(part: _Section) -> str:
    name, title = part.view.name, part.view.title
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in part.figure.notes)
    tall = part.figure.layout.get("height", 450)
    drawing = f"""<div class="panel"><p class="said" id="{name}-said" hidden></p>
<div id="{name}-figure" class="figure" style="min-height:{tall}px" tabindex="0" role="application"
aria-label="{escape(title)}: arrow keys step from mark to mark, Enter opens its finding"></div></div>"""
    numbers = ""
    if part.numbers:
        words = "What is known, as a table" if part.figure.empty else "The same as a table"
        numbers = f'<details class="more"><summary>{words}</summary>{part.numbers}</details>'
    return f"""<section id="{name}-section" aria-labelledby="{name}">
<h2 id="{name}">{title}</h2>
<p class="lead">{escape(part.view.lead)}</p>
{"" if part.figure.empty else drawing}
{notes}{numbers}
</section>
"""
