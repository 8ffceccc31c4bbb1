"""The page's figures as tables, for those who read numbers or cannot see the drawing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from shardtoll.dashboards import human, step_times, summary
from shardtoll.dashboards.exposed_parts import exposed_parts
from shardtoll.dashboards.page_bill import safe
from shardtoll.dashboards.sites import Site
from shardtoll.dashboards.text import clip
from shardtoll.ledger import Report

RANKS_SHOWN: Final = 32
SITES_SHOWN: Final = 100


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
    marks = step_times.marks(times)
    mixed = step_times.mixed(times)
    rows = []
    listed = [*shown, rest] if rest is not None else shown
    for time, exposed in zip(listed, exposed_parts(report, listed), strict=True):
        name = str(time.ranks[0]) if len(time.ranks) == 1 else f"mean of the {len(time.ranks)} others"
        mark = f" <b>{marks[time.ranks]}</b>" if time.ranks in marks else ""
        split = (None, None) if exposed is None else (exposed.waiting_ns, exposed.moving_ns)
        values = [*time.parts_ns[:2], *split, *time.parts_ns[2:], time.capture_ns, time.total_ns]
        if mixed:
            values += [time.watched_comm_ns, time.watched_ns]
        rows.append([name + mark, *(human.duration(value) for value in values)])
    parts = [words for _, words in step_times.PARTS]
    heads = ["rank", *parts[:2], "of it waiting", "of it moving", *parts[2:], "of which capture", "total"]
    if mixed:
        heads += ["watched steps: exposed comm", "watched steps: step"]
    return table(heads, rows, "step times by rank")


def sites(found: Sequence[Site]) -> str:
    """Return the sites with the most exposed time."""
    rows = []
    for site in found[:SITES_SHOWN]:
        group = f"×{site.group_size} {safe(clip(site.mesh_dim or site.group, 60))}"
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


def notices(report: Report) -> str:
    """Return the notices as a list; nothing where there is none."""
    items = [
        f"<li><b>{safe(clip(kind, 60))}</b>: {safe(clip(text, 1000))}</li>"
        for kind, text in summary.notices(report)
    ]
    return f"<h2>Notices</h2><ul>{''.join(items)}</ul>" if items else ""


def facts(report: Report) -> str:
    """Return what is known of the run, as a list of terms."""
    run = report.run
    rows = [
        ("ranks", f"{len(run.ranks_seen)} of {run.world_size} seen"),
        ("backend", _known(run.backend)),
        ("device", _known(run.device)),
        ("torch", _known(run.torch)),
        ("mesh", " × ".join(f"{safe(clip(k, 40))} = {v}" for k, v in run.mesh.items()) or "none found"),
        ("hosts", safe(clip(", ".join(run.hosts), 300)) if run.hosts else human.UNKNOWN),
        ("source", escape(run.source)),
        ("fabric", f"{safe(clip(report.fabric.name, 80))}: {safe(clip(report.fabric.provenance, 900))}"),
    ]
    levels = summary.levels(report)
    if levels:
        rows.insert(-1, ("steps", levels))
    if run.ranks_missing:
        rows.insert(1, ("missing", f"<b>{summary.ranks_words(run.ranks_missing)} left no records</b>"))
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)


def _known(value: str | None) -> str:
    return human.UNKNOWN if value is None else safe(clip(value, 120))
