"""The first screen on the page: the run in a line, the step as bars, the findings that cost most."""

from __future__ import annotations

from html import escape
from typing import Final

from shardtoll.dashboards.facts import summary
from shardtoll.dashboards.facts.first_screen import first_facts, hung, together, under_bars
from shardtoll.dashboards.facts.first_screen.drawn import words
from shardtoll.dashboards.facts.first_screen.first_facts import Bar
from shardtoll.dashboards.facts.first_screen.first_rows import Row, worth_showing
from shardtoll.dashboards.facts.first_screen.legend import legend
from shardtoll.dashboards.facts.first_screen.legend import words as words_meaning
from shardtoll.dashboards.page.html.coded_html import coded_html
from shardtoll.dashboards.words.text import clean, clip
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.words import human

CLASSES: Final = ("compute", "waiting", "moving", "comm", "copies", "idle", "unknown")
"""Style of each of `DRAWN`, in page.css."""
_PLACE: Final = 120
_CLAUSE: Final = 200
_FACT: Final = 900


def first_screen(report: Report) -> str:
    """Return the HTML: what `shardtoll report` prints first, under its verdict."""
    missing = report.run.ranks_missing
    lines = [f'<p class="run">{_safe(first_facts.run_line(report))}</p>']
    if missing:
        words = f"{human.ranks(missing)} of {report.run.world_size:,} left no records"
        lines.append(f'<p class="fault">{escape(words)}</p>')
    hang = hung.hang_of(report)
    if hang is not None:
        return "\n".join([*lines, _hang(report, hang), _findings(report)])
    return "\n".join([*lines, _steps(report), _findings(report)])


def _hang(report: Report, hang: Finding) -> str:
    """Return what ranks wait for, and where the rest is: what steps cost does not matter now."""
    facts = "".join(
        f"<dt>{_safe(label)}</dt><dd>{coded_html(_safe(clip(words, _FACT)))}</dd>"
        for label, words in hung.told(hang)
    )
    costs = hung.costs(report)
    below = f'<p class="note">{escape(costs)}: <a href="#bill">the bill below</a>.</p>' if costs else ""
    return f'<dl class="facts hang">{facts}</dl>{below}'


def _safe(text: str) -> str:
    return f"<bdi>{escape(clean(text))}</bdi>"


def _steps(report: Report) -> str:
    bars = first_facts.bars(report)
    if not bars:
        return '<p class="note">No step finished, so there is no step time to divide.</p>'
    longest = max(bar.total_ns for bar in bars)
    drawn = sorted({place for bar in bars for place, part_ns in bar.parts if part_ns > 0})
    keys = "".join(
        f'<span><i class="{CLASSES[place]}"></i>{words(place, split=bars[0].split)[1]}</span>'
        for place in drawn
    )
    rows = "".join(_bar(bar, longest) for bar in bars)
    meaning = words_meaning(report, drawn)
    uneven = under_bars.uneven_compute(report)
    said = [*([meaning] if meaning else []), *under_bars.between_steps(report)]
    said += [uneven] if uneven else []
    idle = under_bars.besides_second_line(report)
    notes = "".join(f'<p class="note">{_safe(line)}</p>' for line in (*said, *([idle] if idle else [])))
    return (
        f'<div class="steps"><p class="keys">step, {escape(summary.mean_of(report))}: {keys}</p>\n'
        f"<table>{rows}</table>{notes}</div>"
    )


def _bar(bar: Bar, longest: float) -> str:
    parts = "".join(
        f'<i class="{CLASSES[place]}" style="width:{100 * part_ns / longest:.2f}%"></i>'
        for place, part_ns in bar.parts
        if part_ns > 0 and longest > 0
    )
    words = escape(" · ".join(bar.shares) or f"parts {human.UNKNOWN}")
    return (
        f'<tr><th scope="row">{escape(bar.name)}</th><td class="num">{human.duration(bar.total_ns)}</td>'
        f'<td class="stack" aria-hidden="true">{parts}</td><td>{words}</td></tr>'
    )


def _findings(report: Report) -> str:
    shown = worth_showing(report)
    if not shown:
        return ""
    error = summary.parts_error_ns(report)
    rows = "\n".join(_finding(report, row, error) for row in shown)
    linked = "".join(
        f'<p class="note">{_safe(sentence)}</p>'
        for sentence in together.on_one_screen(report, [row.number for row in shown])
    )
    names = {name for row in shown for name in first_facts.figure_names(row.finding, error)[0]}
    meaning = legend(report, [row.finding for row in shown], names)
    words = f'<p class="note">{_safe(meaning)}</p>' if meaning else ""
    return f'{words}<ol class="top">{rows}</ol>{linked}'


def _finding(report: Report, row: Row, error_ns: float | None) -> str:
    number, finding = row.number, row.finding
    place = clip(row.place or first_facts.place(finding, report), _PLACE)
    (figures, *_) = first_facts.figures(finding, error_ns, first_facts.saved_with(report, number))
    clause = coded_html(_safe(clip(first_facts.remedy(finding), _CLAUSE)))
    more = first_facts.more_like(row)
    clause += "" if more is None else f"; {escape(more)}"
    link = f'<a href="#finding-{number}">{escape(finding.kind)}</a>'
    return (
        f'<li value="{number}" class="{finding.severity}"><b class="badge">{finding.severity}</b> {link} '
        f"{_safe(place)} <span>{escape(figures)}</span><br>{clause}</li>"
    )
