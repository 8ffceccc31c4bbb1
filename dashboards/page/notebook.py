"""The report in a notebook: a small HTML fragment of tables, without script or style sheet."""

from __future__ import annotations

from html import escape
from typing import Final

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.dashboards.facts.applies import duration
from shardtoll.dashboards.facts.first_screen import under_bars
from shardtoll.dashboards.page.html import tables
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.report.report import NOTEBOOK
from shardtoll.ledger.words import human

FINDINGS_SHOWN: Final = 20


@NOTEBOOK.entry
def render(report: Report) -> str:
    """Return the headline, the bill and the step summary as an HTML fragment."""
    rows = list(enumerate(report.findings, start=1))
    heads = ("#", "kind", "where", "count", "bytes", "toll", "floor", "saving", "remedy")
    parts = [f"<p><b>shardtoll</b>: {safe(clip(report.verdict, 900))}</p>"]
    parts += [f"<p>{safe(line)}</p>" for line in under_bars.below_verdict(report)]
    levels = summary.levels(report)
    if levels:
        parts.append(f"<p>{levels}</p>")
    if rows:
        bill = [_row(number, finding) for number, finding in rows[:FINDINGS_SHOWN]]
        parts.append(tables.table(heads, bill, "the bill"))
    if len(rows) > FINDINGS_SHOWN:
        parts.append(f"<p>{len(rows) - FINDINGS_SHOWN} more findings are in report.findings.</p>")
    if step_times.rank_times(report):
        parts.append(f"<p>The step, {summary.mean_of(report)}:</p>")
        parts.append(tables.steps(report))
    return f'<div class="shardtoll">{"".join(parts)}{tables.notices(report)}</div>'


def _row(number: int, finding: Finding) -> list[str]:
    remedy = safe(clip(finding.remedy.text, 300)) if finding.remedy else "none known"
    return [
        str(number),
        f"{finding.severity} <b>{escape(finding.kind)}</b><br>{safe(clip(finding.title, 300))}",
        safe(clip(finding.where.label(), 160)),
        human.number(finding.count),
        human.size(finding.bytes),
        *(duration(finding, name) for name in ("toll", "floor", "saving")),
        remedy,
    ]
