"""A page that compares two runs: self-contained, offline, light and dark, equal bytes each time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from shardtoll.dashboards.compare import rows as compare_rows
from shardtoll.dashboards.page.html.figure import (
    PALETTE,
    TOP_LEGEND,
    Figure,
    Strings,
    height,
    hover,
    literal,
    ms,
)
from shardtoll.dashboards.page.html.frame import framed
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.html.tables import table
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.answers.comparison import Change, Comparison
from shardtoll.ledger.words import human

MOST: Final = 24
"""Modules and collectives in the figure of changes: those that changed most."""
_COLOURS: Final = {
    "computing": PALETTE["green"],
    "moving": PALETTE["vermillion"],
    "waiting": PALETTE["orange"],
    "copies": PALETTE["purple"],
    "idle": PALETTE["sky"],
}
_MARKS: Final = {
    "changed": (PALETTE["vermillion"], "diamond"),
    "no change": (PALETTE["grey"], "circle"),
}
_CHANGES: Final = (
    "Marks are the changes, lines the intervals that hold all of them together in 95 of 100 comparisons. "
    "A line that crosses zero is a change within noise."
)
_MOST: Final = 900


def render(comparison: Comparison) -> str:
    """Return the whole page as text; names are escaped, nothing is fetched."""
    figures = {"anatomy": anatomy(comparison), "changes": changes(comparison)}
    names = f"{safe(clip(comparison.before.name, 200))} &rarr; {safe(clip(comparison.after.name, 200))}"
    warnings = "".join(
        f"<li><b>not alike</b>: {safe(clip(words, _MOST))}</li>" for words in comparison.warnings
    )
    notes = "".join(f"<li>{safe(clip(words, _MOST))}</li>" for words in comparison.notes)
    tables = "".join(_table(number, part) for number, part in enumerate(compare_rows.sections(comparison)))
    body = f"""<header>
<h1>shardtoll <span>what changed between two runs</span></h1>
<p class="headline{" fine" if comparison.verdict == "no change" else ""}" id="headline">{
        safe(clip(comparison.headline, _MOST))
    }</p>
<p>{names}</p>
<ul>{warnings}{notes}</ul>
</header>
<main>
{_figure("anatomy", "Where the steps go", compare_rows.unit_words(comparison), figures["anatomy"])}
{_figure("changes", "What changed", _CHANGES, figures["changes"])}
{tables}
</main>"""
    return framed(f"shardtoll compare: {comparison.verdict}", body, figures)


def _figure(name: str, title: str, lead: str, drawn: Figure) -> str:
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in drawn.notes)
    panel = f'<div class="panel"><div id="{name}-figure" class="figure"></div></div>'
    return f"""<section id="{name}-section" aria-labelledby="{name}">
<h2 id="{name}">{title}</h2>
<p class="lead">{escape(lead)}</p>
{"" if drawn.empty else panel}
{notes}
</section>"""


def _table(number: int, part: compare_rows.Section) -> str:
    rows = [[safe(cell) for cell in row] for row in part.rows]
    more = f'<p class="note">and {part.left:,} more, which are in the JSON</p>' if part.left else ""
    shown = table([escape(head) for head in part.heads], rows, f"table {number + 1}")
    return f"<section><h2>{safe(part.title)}</h2>\n{shown}{more}</section>\n"


def anatomy(comparison: Comparison) -> Figure:
    """Return a bar for each run; the parts of a bar add up to its step."""
    if comparison.step.before is None or comparison.step.after is None or not comparison.parts:
        return Figure([], {}, ["One of the runs has no timed step to divide."])
    names, steps = ["before", "after"], (comparison.step.before, comparison.step.after)
    data: list[dict[str, Any]] = []
    for part in comparison.parts:
        if part.before is None or part.after is None:
            # It is in the last part, which is named for it.
            continue
        values = [part.before, part.after]
        texts = [
            hover([f"<b>{name}</b>", f"{literal(part.name)}: {human.duration(value)}",
                   f"{human.share(value, whole)} of {human.duration(whole)}"])
            for name, value, whole in zip(names, values, steps, strict=True)
        ]  # fmt: skip
        colour = _COLOURS.get(part.name, PALETTE["grey"])
        pattern = {"shape": "/" if part.name in ("moving", "waiting") else "", "bgcolor": colour,
                   "fgcolor": "#ffffff", "size": 7, "solidity": 0.2}  # fmt: skip
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": part.name,
                "y": names,
                "x": [ms(value) for value in values],
                "hovertext": texts,
                "hovertemplate": "%{hovertext}<extra></extra>",
                # Not by colour alone.
                "marker": {"color": colour, "pattern": pattern},
            }
        )
    layout = {
        "barmode": "stack",
        "height": height(2, each=50),
        "xaxis": {"title": {"text": "ms per step, mean of ranks"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
        "legend": TOP_LEGEND,
    }
    return Figure(data, layout)


def changes(comparison: Comparison) -> Figure:
    """Return each time's change with the interval that holds it; those beyond noise are marked."""
    rows = _rows(comparison)
    if not rows:
        return Figure([], {}, ["No time has an interval: there are too few steps."])
    strings = Strings()
    names = [f"{number}. {literal(name, 60)}" for number, (name, _) in enumerate(rows, start=1)]
    data = []
    for kind, (colour, symbol) in _MARKS.items():
        picked = [
            (name, change)
            for name, (_, change) in zip(names, rows, strict=True)
            if change.changed == (kind == "changed")
        ]
        if not picked:
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "beyond noise" if kind == "changed" else "within noise",
                "x": [ms(change.difference or 0.0) for _, change in picked],
                "y": [name for name, _ in picked],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [ms((change.high or 0.0) - (change.difference or 0.0)) for _, change in picked],
                    "arrayminus": [
                        ms((change.difference or 0.0) - (change.low or 0.0)) for _, change in picked
                    ],
                    "color": colour,
                },
                "marker": {"color": colour, "symbol": symbol, "size": 10},
                "hovertext": [strings.add(_words(change)) for _, change in picked],
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )
    layout = {
        "height": height(len(rows), each=26),
        "xaxis": {"title": {"text": "change, ms per step"}, "zeroline": True},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True,
                  "categoryorder": "array", "categoryarray": names},
        "legend": TOP_LEGEND,
    }  # fmt: skip
    return Figure(data, layout, strings=strings.all())


def _rows(comparison: Comparison) -> list[tuple[str, Change]]:
    """Return the step, its parts, and the modules and collectives that changed most."""
    whole = [("the step", comparison.step), *((part.name, part) for part in comparison.parts)]
    others = [(module.name, module.time) for module in comparison.modules]
    others += [(f"{compare_rows.site(site)[0]}", site.exposed) for site in comparison.sites]
    others = [(name, change) for name, change in others if change.low is not None and change.difference]
    others.sort(key=lambda row: (not row[1].changed, -abs(row[1].difference or 0.0)))
    kept: Sequence[tuple[str, Change]] = others[:MOST]
    return [(name, change) for name, change in (*whole, *kept) if change.low is not None]


def _words(change: Change) -> str:
    name, was, now, by, interval, least, verdict = compare_rows.change(change)
    lines = [f"<b>{literal(name)}</b>", f"{was} -> {now}: {by}", f"interval: {interval}",
             f"least change that is seen: {least}", verdict]  # fmt: skip
    return hover([lines[0], *(literal(line) for line in lines[1:])])
