"""One self-contained HTML page: the bill, the step, the roofline and the timeline, offline.

The same report gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from shardtoll.dashboards.facts import summary
from shardtoll.dashboards.page.html import tables
from shardtoll.dashboards.page.html.coded_html import coded_html
from shardtoll.dashboards.page.html.figure import Figure
from shardtoll.dashboards.page.html.first import first_screen
from shardtoll.dashboards.page.html.frame import framed
from shardtoll.dashboards.page.html.page_bill import bill, safe
from shardtoll.dashboards.page.views.views import VIEWS, View
from shardtoll.dashboards.words.files import write as write_file
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Report
from shardtoll.ledger.words import human


@dataclass(frozen=True, slots=True)
class _Section:
    view: View
    figure: Figure
    numbers: str


def write(report: Report, path: Path) -> list[Path]:
    """Write the page and return the files written; UsageError if that fails."""
    write_file(path, render(report).encode())
    return [path]


def render(report: Report) -> str:
    """Return the whole page as text. Encode it as UTF-8."""
    sections = _sections(report)
    links = "".join(f'<a href="#{part.view.name}">{part.view.title}</a>' for part in sections)
    body = f"""<header>
<h1>shardtoll <span>what each collective of a training step costs</span></h1>
{head(report, report.verdict)}
<nav aria-label="sections"><a href="#bill">The bill</a>{links}</nav>
</header>
<div class="lamp" id="picked"><p id="picked-words" aria-live="polite"></p>
<button type="button" id="picked-clear" hidden>clear</button></div>
<main>
<section id="bill-section" aria-labelledby="bill">
<h2 id="bill">The bill</h2>
<p class="lead">Errors, warnings, infos, each by what its fix saves. Times and bytes are per step, each on
the rank where it is largest. Open a finding, and every figure shows what it speaks of; Escape puts that out.
In a figure a click on a mark opens its most expensive finding; arrow keys step from mark to mark, and Enter
opens that finding.</p>
{bill(report)}
</section>
{"".join(section(part.view, part.figure, part.numbers) for part in sections)}
{tables.late(report)}{tables.hta(report)}{tables.notices(report)}
</main>
<p id="told" class="unseen" aria-live="polite"></p>"""
    figures = {part.view.name: part.figure for part in sections}
    return framed(escape(tab_title(report)), body, figures)


def tab_title(report: Report) -> str:
    """Return what tells this run's tab from others: its worst findings, the first one's kind, its size."""
    run = report.run
    ranks = human.plural(run.world_size, "rank")
    if not report.findings:
        return f"shardtoll: nothing found · {ranks}"
    worst = report.findings[0]
    count = sum(finding.severity == worst.severity for finding in report.findings)
    return f"shardtoll: {human.plural(count, worst.severity)} ({worst.kind}) · {ranks}"


def _sections(report: Report) -> list[_Section]:
    """Return the views that have something to show of this report."""
    sections = []
    for view in VIEWS:
        figure = view.figure(report)
        shown = view.numbers is not None and (view.alone or not figure.empty)
        numbers = view.numbers(report) if view.numbers is not None and shown else ""
        if not figure.empty or figure.notes or numbers:
            sections.append(_Section(view, figure, numbers))
    return sections


def head(report: Report, sentence: str) -> str:
    """Return the first screen: the verdict (or what stands for it), the run, the step, what costs most."""
    fine = "" if report.findings else " fine"
    line = summary.second_line(report)
    second = f'\n<p class="fault" id="second-line">{safe(line)}</p>' if line else ""
    return f"""<p class="headline{fine}" id="headline">{safe(clip(sentence, 900))}</p>{second}
{first_screen(report)}
<details class="more"><summary>About the run</summary>
<dl class="facts">{tables.facts(report)}</dl></details>"""


def section(view: View, figure: Figure, numbers: str = "") -> str:
    """Return a view's section: its heading, the place its figure is drawn in, notes and numbers."""
    name, title = view.name, view.title
    notes = "".join(f'<p class="note">{coded_html(escape(note))}</p>' for note in figure.notes)
    tall = figure.layout.get("height", 450)
    drawing = f"""<div class="panel"><p class="said" id="{name}-said" hidden></p>
<div id="{name}-figure" class="figure" style="min-height:{tall}px" tabindex="0" role="application"
aria-label="{escape(title)}: arrow keys step from mark to mark, Enter opens its finding"></div></div>"""
    if numbers:
        words = "The figures as a table" if figure.empty else "The same as a table"
        numbers = f'<details class="more"><summary>{words}</summary>{numbers}</details>'
    return f"""<section id="{name}-section" aria-labelledby="{name}">
<h2 id="{name}">{title}</h2>
<p class="lead">{escape(view.lead)}</p>
{"" if figure.empty else drawing}
{notes}{numbers}
</section>
"""
