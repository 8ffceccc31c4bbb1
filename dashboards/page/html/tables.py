"""The page's figures as tables, for those who read numbers or cannot see the drawing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.dashboards.facts.first_screen import first_facts
from shardtoll.dashboards.facts.hta_tables import contradiction, hta_tables, named_ranks
from shardtoll.dashboards.facts.sites import Site
from shardtoll.dashboards.facts.waits import HEADS, late_ranks
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.words.mesh_words import mesh_words
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Report
from shardtoll.ledger.words import human

RANKS_SHOWN: Final = 32
SITES_SHOWN: Final = 100
HTA_ROWS_SHOWN: Final = 64
HTA_NOTICES_SHOWN: Final = 32


def table(heads: Iterable[str], rows: Iterable[Sequence[str]], label: str) -> str:
    """Return a table whose cells are HTML already; it scrolls on its own and can be reached by keyboard."""
    top = "".join(f'<th scope="col">{head}</th>' for head in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def steps(report: Report) -> str:
    """Return each rank's mean step; its parts add up to the total."""
    times = step_times.rank_times(report)
    shown, rest = step_times.fold(times, RANKS_SHOWN)
    marks = first_facts.marks_of(report, times)
    mixed = step_times.mixed(times)
    rows = []
    listed = [*shown, rest] if rest is not None else shown
    whole = any(time.recorded_whole for time in listed)
    for time in listed:
        name = str(time.ranks[0]) if len(time.ranks) == 1 else f"mean of the {len(time.ranks)} others"
        mark = f" <b>{marks[time.ranks]}</b>" if time.ranks in marks else ""
        split = (time.waiting_ns, time.moving_ns)
        capture = [time.capture_ns] if whole else []
        values = [*time.parts_ns[:2], *split, *time.parts_ns[2:], *capture, time.total_ns]
        if mixed:
            values += [time.watched_comm_ns, time.watched_ns]
        rows.append([name + mark, *(human.duration(value) for value in values)])
    parts = [words for _, words in step_times.PARTS]
    capture_head = ["of which capture"] if whole else []
    heads = ["rank", *parts[:2], "of it waiting", "of it moving", *parts[2:], *capture_head, "total"]
    if mixed:
        heads += ["watched steps: exposed comm", "watched steps: step"]
    return table(heads, rows, "step times by rank")


def sites(every: Sequence[Site]) -> str:
    """Return the sites with the most exposed time."""
    rows = []
    for site in every[:SITES_SHOWN]:
        group = f"×{site.group_size} {safe(clip(site.net, 60))}"
        numbers = (
            f"{site.calls:,}",
            human.size(site.message_bytes),
            human.duration(site.exposed_ns),
            human.rate(site.busbw_gbps),
            human.duration(site.floor_ns),
        )
        rows.append([safe(clip(site.op, 60)), group, safe(clip(site.cause(), 300)), *numbers])
    heads = ("op", "group", "cause", "calls", "message", "exposed in all", "busbw, median", "floor")
    return table(heads, rows, "collectives by cause")


def late(report: Report) -> str:
    """Return the late ranks as a section; nothing if no collective was matched over all ranks of a group."""
    shown, total = late_ranks(report)
    if not shown:
        return ""
    rows = [[safe(clip(cell, 60)) for cell in row.cells()] for row in shown]
    rest = total - len(shown)
    more = f'<p class="note">And {human.plural(rest, "more collective")}.</p>' if rest else ""
    return (
        '<section aria-labelledby="late"><h2 id="late">The late rank of each collective</h2>'
        '<p class="lead">Longest wait first, each matched over all ranks of its group. Late is what comes '
        "10 µs or more after the rank before it; transfer and busbw are medians over the ranks.</p>"
        f"{table(HEADS, rows, 'late rank of each collective')}{more}</section>\n"
    )


def hta(report: Report) -> str:
    """Return HTA's answers as a section; nothing if HTA was not asked."""
    figures = report.hta
    if figures is None:
        return ""
    parts = []
    for answer in hta_tables(figures, HTA_ROWS_SHOWN, named_ranks(report)):
        rows = [[safe(cell) for cell in row] for row in answer.rows]
        more = f'<p class="note">{answer.left_out:,} more rows are in the JSON file.</p>'
        parts.append(
            f'<h3>{safe(answer.title)}</h3><p class="lead">{safe(answer.lead)}</p>'
            f"{table(answer.heads, rows, safe(answer.title))}{more if answer.left_out else ''}"
        )
    caution = contradiction(report)
    notes = f'<p class="note">{safe(caution)}</p>' if caution else ""
    notes += "".join(
        f'<p class="note">{safe(clip(line, 400))}</p>' for line in figures.notices[:HTA_NOTICES_SHOWN]
    )
    rest = len(figures.notices) - HTA_NOTICES_SHOWN
    if rest > 0:
        notes += f'<p class="note">{rest:,} more such lines are in the JSON file.</p>'
    return f"""<section id="hta-section" aria-labelledby="hta">
<h2 id="hta">What HTA says</h2>
<p class="lead">Figures of Holistic Trace Analysis {safe(clip(figures.version, 20))}, in its own terms.</p>
{"".join(parts)}
{notes}
</section>
"""


def notices(report: Report) -> str:
    """Return the notices as a list; empty if there is none."""
    items = [
        f"<li><b>{safe(clip(kind, 60))}</b>: {safe(clip(text, 1000))}</li>"
        for kind, text in summary.notices(report)
    ]
    return f"<h2>Notices</h2><ul>{''.join(items)}</ul>" if items else ""


def facts(report: Report) -> str:
    """Return the facts about the run, as a list of terms."""
    run = report.run
    rows = [
        ("ranks", summary.forecast_of(run) or f"{len(run.ranks_seen)} of {run.world_size} seen"),
        ("backend", _known(run.backend)),
        ("device", _known(run.device)),
        ("torch", _known(run.torch)),
        ("mesh", safe((mesh_words(run) or "none found").removeprefix("mesh "))),
        ("hosts", safe(clip(", ".join(run.hosts), 300)) if run.hosts else human.UNKNOWN),
        ("source", escape(run.source)),
        ("fabric", f"{safe(clip(report.fabric.name, 80))}: {safe(clip(report.fabric.provenance, 900))}"),
    ]
    levels = summary.levels(report)
    if levels:
        rows.insert(-1, ("steps", levels))
    if run.ranks_missing:
        rows.insert(1, ("missing", f"<b>{human.ranks(run.ranks_missing)} left no records</b>"))
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)


def _known(value: str | None) -> str:
    return human.UNKNOWN if value is None else safe(clip(value, 120))
