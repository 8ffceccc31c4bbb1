"""A page of two runs beside each other: self-contained, offline, light and dark, equal bytes each time."""

from __future__ import annotations

from html import escape
from typing import Final

from shardtoll.dashboards import compare_figure, compare_rows
from shardtoll.dashboards.figure import Figure
from shardtoll.dashboards.page_bill import safe
from shardtoll.dashboards.page_frame import framed
from shardtoll.dashboards.page_tables import table
from shardtoll.dashboards.text import clip
from shardtoll.ledger.comparison import Comparison

_CHANGES: Final = (
    "Marks are the changes, lines the intervals that hold all of them together in 95 of 100 comparisons. "
    "A line that crosses zero is no change that can be told from noise."
)
_MOST: Final = 900


def render(found: Comparison) -> str:
    """Return the whole page as text; names are escaped, nothing is fetched."""
    figures = {"anatomy": compare_figure.anatomy(found), "changes": compare_figure.changes(found)}
    names = f"{safe(clip(found.before.name, 200))} &rarr; {safe(clip(found.after.name, 200))}"
    warnings = "".join(f"<li><b>not alike</b>: {safe(clip(words, _MOST))}</li>" for words in found.warnings)
    notes = "".join(f"<li>{safe(clip(words, _MOST))}</li>" for words in found.notes)
    tables = "".join(_table(at, part) for at, part in enumerate(compare_rows.sections(found)))
    body = f"""<header>
<h1>shardtoll <span>what changed between two runs</span></h1>
<p class="headline{" fine" if found.verdict == "no change" else ""}" id="headline">{
        safe(clip(found.headline, _MOST))
    }</p>
<p>{names}</p>
<ul>{warnings}{notes}</ul>
</header>
<main>
{_figure("anatomy", "Where the steps go", compare_rows.unit_words(found), figures["anatomy"])}
{_figure("changes", "What changed", _CHANGES, figures["changes"])}
{tables}
</main>"""
    return framed(f"shardtoll compare: {found.verdict}", body, figures)


def _figure(name: str, title: str, lead: str, drawn: Figure) -> str:
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in drawn.notes)
    panel = f'<div class="panel"><div id="{name}-figure" class="figure"></div></div>'
    return f"""<section id="{name}-section" aria-labelledby="{name}">
<h2 id="{name}">{title}</h2>
<p class="lead">{escape(lead)}</p>
{"" if drawn.empty else panel}
{notes}
</section>"""


def _table(at: int, part: compare_rows.Section) -> str:
    rows = [[safe(cell) for cell in row] for row in part.rows]
    more = f'<p class="note">and {part.left:,} more, which are in the JSON</p>' if part.left else ""
    shown = table([escape(head) for head in part.heads], rows, f"table {at + 1}")
    return f"<section><h2>{safe(part.title)}</h2>\n{shown}{more}</section>\n"
