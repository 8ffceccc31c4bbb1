"""A page of the step after changes: self-contained, offline, equal bytes each time."""

from __future__ import annotations

from html import escape

from shardtoll.dashboards.facts import replayed_words as words
from shardtoll.dashboards.page.html.fall import Fall, waterfall
from shardtoll.dashboards.page.html.frame import framed
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.html.tables import table
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.answers.what_if import WhatIf

_LEAD = "Each bar shows how much its change shortens the step, after the changes above it."


def render(answer: WhatIf) -> str:
    """Return the whole page as text; names are escaped, nothing is fetched."""
    falls = [Fall(words.label(change), change.step_ns, change.number) for change in answer.changes]
    today, after = Fall("today", answer.before.step_ns), Fall("after", answer.after.step_ns)
    figures = {"fall": waterfall(today, falls, [after])}
    basis = words.basis(
        answer.source, len(answer.steps), answer.nodes, answer.replay_error, answer.unknown_share
    )
    notes = "".join(f"<li>{safe(clip(note, 600))}</li>" for note in answer.notes)
    gone = "".join(f"<li>vanishes: {safe(clip(line, 400))}</li>" for line in answer.vanished)
    come = "".join(f"<li>appears: {safe(clip(line, 400))}</li>" for line in answer.appeared)
    sections = (
        ("The changes", words.CHANGE_HEADS, words.change_rows(answer.changes)),
        ("The step", words.PARTS_HEADS, words.part_rows(answer)),
        ("The critical path after", words.PATH_HEADS, words.path_rows(answer.path)),
    )
    tables = "".join(
        f"<section><h2>{title}</h2>\n"
        + table([escape(head) for head in heads], [[safe(cell) for cell in row] for row in rows], title)
        + "</section>\n"
        for title, heads, rows in sections
    )
    body = f"""<header>
<h1>shardtoll <span>the step after changes</span></h1>
<p class="headline" id="headline">{safe(words.headline(answer))}</p>
<p>{safe(clip(answer.run, 200))}</p>
<ul><li>{safe(basis)}</li>{notes}{gone}{come}</ul>
</header>
<main>
<section id="fall-section" aria-labelledby="fall">
<h2 id="fall">Change by change</h2>
<p class="lead">{escape(_LEAD)}</p>
<div class="panel"><div id="fall-figure" class="figure"></div></div>
</section>
{tables}
</main>"""
    return framed("shardtoll whatif", body, figures)
