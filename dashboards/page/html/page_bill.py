"""The page's bill: ranked findings, each a <details> that opens to evidence, remedy and source line."""

from __future__ import annotations

from html import escape
from typing import Final

from shardtoll.dashboards.facts import replayed_words, summary
from shardtoll.dashboards.facts.applies import applies, duration
from shardtoll.dashboards.facts.first_screen import together
from shardtoll.dashboards.page.html.coded_html import coded_html
from shardtoll.dashboards.words.text import clean, clip
from shardtoll.ledger import Evidence, Finding, Remedy, Report, Run
from shardtoll.ledger.words import human

_NUMBER_MOST: Final = 24


def safe(value: object) -> str:
    """Return the text escaped for HTML, in an element that keeps its writing direction to itself."""
    return f"<bdi>{escape(clean(value))}</bdi>"


def bill(report: Report) -> str:
    """Return the section's HTML."""
    if not report.findings:
        return f'<p class="none">Nothing found. Checked: {escape(summary.checked(report))}.</p>'
    rows = list(enumerate(report.findings, start=1))
    dearest = max((finding.toll_ns or 0 for _, finding in rows), default=0)
    head = "".join(f"<span>{name}</span>" for name in ("#", "kind", "finding", "toll", "floor", "saving"))
    overlaps = "".join(f"<p>{safe(sentence)}</p>\n" for sentence in together.on_the_bill(report))
    return f'{overlaps}<div class="row head" aria-hidden="true">{head}</div>\n' + "\n".join(
        _finding(number, finding, dearest, report.run) for number, finding in rows
    )


def _finding(number: int, finding: Finding, dearest: int, run: Run) -> str:
    weight = round(100 * (finding.toll_ns or 0) / dearest, 1) if dearest else 0
    place = safe(clip(summary.places(finding)[0][1], 160))
    if (some := summary.some_ranks(finding, run)) is not None:
        place += f" · {some}"
    first = " open" if number == 1 else ""
    title = f"{safe(clip(finding.title, 400))}<br><small>{place}</small>"
    bar = f'<i style="width:{weight}%"></i>'
    body = _where(finding) + _evidence(finding.evidence) + _remedy(finding)
    return (
        f'<details class="finding {finding.severity}" id="finding-{number}"{_toll(finding)}{first}>'
        '<summary class="row">'
        f'<span class="rank">{number}</span>'
        f'<span class="kind"><b class="badge">{finding.severity}</b> {escape(finding.kind)}</span>'
        f'<span class="title">{title}</span>'
        f'<span class="num toll" data-name="toll">{bar}{_time(finding, "toll")}</span>'
        f'<span class="num" data-name="floor">{_time(finding, "floor")}</span>'
        f'<span class="num" data-name="saving">{_time(finding, "saving")}</span>'
        f'</summary><div class="body">{body}</div></details>'
    )


def _toll(finding: Finding) -> str:
    """Return the toll for the page's script; empty if it is unknown."""
    return "" if finding.toll_ns is None else f' data-toll="{finding.toll_ns}"'


def _time(finding: Finding, name: str) -> str:
    text = duration(finding, name)
    return f'<em class="unknown">{text}</em>' if text == human.UNKNOWN else text


def _bytes(count: int | None) -> str:
    return human.UNKNOWN if count is None else f"{human.size(count)} per step and rank"


def _where(finding: Finding) -> str:
    rows = [(name, f"<code>{safe(clip(value, 2000))}</code>") for name, value in summary.places(finding)]
    rows += [
        ("count", f"{human.number(finding.count)} per step and rank"),
        *(
            [("bytes", _bytes(finding.bytes))]
            if finding.bytes is not None or applies(finding, "bytes")
            else []
        ),
        ("ranks", human.runs(finding.ranks)),
        ("confidence", escape(finding.confidence)),
    ]
    rows += [("place", f"<code>{safe(clip(line, 2000))}</code>") for line in summary.occurrences(finding)]
    items = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return f"<div><h4>Where and how often</h4><dl>{items}</dl></div>"


def _evidence(evidence: tuple[Evidence, ...]) -> str:
    if not evidence:
        return "<div><h4>Evidence</h4><p>none given</p></div>"
    rows = "".join(
        f'<tr><th scope="row">{safe(clip(item.label, 400))}</th>{_cell(item)}</tr>' for item in evidence
    )
    return f'<div><h4>Evidence</h4><table class="evidence">{rows}</table></div>'


def _cell(item: Evidence) -> str:
    value = clip(human.quantity(item.value, item.unit), 2000)
    # A number stays on the line of its unit. A unit is text from a file and may be of any length.
    kind = "text" if isinstance(item.value, str) or len(value) > _NUMBER_MOST else "number"
    return f'<td class="{kind}">{safe(value)}</td>'


def _remedy(finding: Finding) -> str:
    remedy: Remedy | None = finding.remedy
    if remedy is None:
        return '<div class="remedy"><h4>Remedy</h4><p>none known</p></div>'
    parts = [f"<p>{coded_html(safe(clip(remedy.text, 4000)))}</p>"]
    if remedy.effort:
        parts.append(f"<p>Effort: {escape(remedy.effort)}.</p>")
    if remedy.code:
        parts.append(f'<pre tabindex="0"><code>{escape(clean(remedy.code, lines=True))}</code></pre>')
    if finding.saving_ns is not None:
        against = safe(clip(remedy.counterfactual, 1000)) if remedy.counterfactual else human.UNKNOWN
        saves = replayed_words.saves(finding)
        words = f"{saves[0].upper()}{saves[1:]} {replayed_words.saving(finding)} per step, against"
        parts.append(f"<p>{safe(words)}: {against}.</p>")
        if finding.replayed is not None:
            parts.append(f"<p>Replayed: {safe(clip(finding.replayed, 200))}.</p>")
    return f'<div class="remedy"><h4>Remedy</h4>{"".join(parts)}</div>'
