"""HTA's answers on the page, as tables."""

from __future__ import annotations

from typing import Final

from shardtoll.dashboards.hta_tables import contradiction, hta_tables, named_ranks
from shardtoll.dashboards.page_bill import safe
from shardtoll.dashboards.page_tables import table
from shardtoll.dashboards.text import clip
from shardtoll.ledger import Report

ROWS_SHOWN: Final = 64
NOTICES_SHOWN: Final = 32


def section(report: Report) -> str:
    """Return the section; nothing where HTA was not asked."""
    figures = report.hta
    if figures is None:
        return ""
    parts = []
    for answer in hta_tables(figures, ROWS_SHOWN, named_ranks(report)):
        rows = [[safe(cell) for cell in row] for row in answer.rows]
        more = f'<p class="note">{answer.left_out:,} more rows are in the JSON file.</p>'
        parts.append(
            f'<h3>{safe(answer.title)}</h3><p class="lead">{safe(answer.lead)}</p>'
            f"{table(answer.heads, rows, safe(answer.title))}{more if answer.left_out else ''}"
        )
    caution = contradiction(report)
    notes = f'<p class="note">{safe(caution)}</p>' if caution else ""
    notes += "".join(
        f'<p class="note">{safe(clip(line, 400))}</p>' for line in figures.notices[:NOTICES_SHOWN]
    )
    rest = len(figures.notices) - NOTICES_SHOWN
    if rest > 0:
        notes += f'<p class="note">{rest:,} more such lines are in the JSON file.</p>'
    return f"""<section id="hta-section" aria-labelledby="hta">
<h2 id="hta">What HTA says</h2>
<p class="lead">Figures of Holistic Trace Analysis {safe(clip(figures.version, 20))}, in its own terms.</p>
{"".join(parts)}
{notes}
</section>
"""
