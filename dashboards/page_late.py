"""The late rank of each collective as a section of the page."""

from __future__ import annotations

from shardtoll.dashboards import human
from shardtoll.dashboards.late_ranks import HEADS, late_ranks
from shardtoll.dashboards.page_bill import safe
from shardtoll.dashboards.page_tables import table
from shardtoll.dashboards.text import clip
from shardtoll.ledger import Report


def section(report: Report) -> str:
    """Return the section; nothing where no collective was matched over all ranks of its group."""
    found, total = late_ranks(report)
    if not found:
        return ""
    rows = [[safe(clip(cell, 60)) for cell in row.cells()] for row in found]
    rest = total - len(found)
    more = f'<p class="note">And {human.plural(rest, "more collective")}.</p>' if rest else ""
    return (
        '<section aria-labelledby="late"><h2 id="late">The late rank of each collective</h2>'
        '<p class="lead">Exposed longest first, each matched over all ranks of its group. Late is what comes '
        "10 µs or more after the rank before it; transfer and busbw are medians over the ranks.</p>"
        f"{table(HEADS, rows, 'late rank of each collective')}{more}</section>\n"
    )
