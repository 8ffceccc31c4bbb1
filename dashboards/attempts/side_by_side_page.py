"""The comparison as one HTML page without scripts: the table, and links to each attempt's own page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shardtoll.dashboards.attempts.side_by_side import Attempt, bill_lines, rows
from shardtoll.dashboards.page.html.frame import STYLE, assets
from shardtoll.dashboards.words.text import clean

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_EXTRA = """
.compare { width: 100%; table-layout: fixed; } .compare th, .compare td { padding: 8px 12px;
  border-top: 1px solid var(--line); } .compare thead th { border: 0; }
.compare tbody th { color: var(--dim); font-weight: 400; width: 150px; }
.compare ol { margin: 0; padding: 0; list-style: none; } .wrong { color: var(--error); font-weight: 600; }
"""


def _text(value: str) -> str:
    return escape(clean(value))


def render(title: str, lead: str, attempts: Sequence[Attempt]) -> str:
    """Return the page; names and texts are escaped, nothing is fetched, equal input gives equal bytes."""
    heads = "".join(
        f'<th scope="col"><a href="{escape(attempt.link, quote=True)}">{_text(attempt.name)}</a></th>'
        if attempt.link
        else f'<th scope="col">{_text(attempt.name)}</th>'
        for attempt in attempts
    )
    body = []
    for row in rows(attempts):
        cells = "".join(
            f'<td class="{"wrong" if cell.startswith("WRONG") else "cell"}">{_text(cell)}</td>'
            for cell in row.cells
        )
        body.append(f'<tr><th scope="row">{_text(row.label)}</th>{cells}</tr>')
    bills = "".join(
        "<td><ol>" + "".join(f"<li>{_text(line)}</li>" for line in bill_lines(attempt)) + "</ol></td>"
        for attempt in attempts
    )
    lessons = "".join(f"<td><em>{_text(attempt.lesson)}</em></td>" for attempt in attempts)
    body.append(f'<tr><th scope="row">the bill</th>{bills}</tr>')
    body.append(f'<tr><th scope="row">lesson</th>{lessons}</tr>')
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{assets(*STYLE)}{_EXTRA}</style>\n</head>\n<body>\n"
        f'<h1>shardtoll <span>{_text(title)}</span></h1>\n<p class="lead">{_text(lead)}</p>\n'
        '<div class="panel"><table class="compare">\n'
        f'<thead><tr><th scope="col">per step</th>{heads}</tr></thead>\n'
        "<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>\n</body>\n</html>\n"
    )
