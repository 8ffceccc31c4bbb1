"""The same as a page: self-contained, without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shardtoll.dashboards.hang import hang_rows as rows
from shardtoll.dashboards.page.html.frame import document
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.html.tables import table
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.answers.hang import HangAnswer

_MOST = 900


def render(answer: HangAnswer) -> str:
    """Return the whole page as text; names are escaped, nothing is fetched or run."""
    remedy, divergence = rows.remedy(answer), rows.divergence_words(answer)
    said = [text for text in (remedy, divergence, *rows.error_lines(answer), *answer.notes) if text]
    body = f"""<header>
<h1>shardtoll <span>{"a hang" if answer.hang else "no hang"}</span></h1>
<p class="headline{"" if answer.hang else " fine"}" id="headline">{safe(clip(answer.verdict, _MOST))}</p>
<ul>{"".join(f"<li>{safe(clip(text, _MOST))}</li>" for text in said)}</ul>
</header>
<main>
{_section("Ranks", rows.RANK_HEADS, rows.rank_rows(answer))}
{_section("Collectives that ranks wait in", rows.GROUP_HEADS, rows.group_rows(answer))}
</main>"""
    return document("shardtoll hang", body)


def _section(title: str, heads: Sequence[str], made: Sequence[Sequence[str]]) -> str:
    if not made:
        return ""
    shown = table([escape(name) for name in heads], [[safe(text) for text in row] for row in made], title)
    return f"<section><h2>{escape(title)}</h2>\n{shown}</section>"
