"""The server's page before anything is known, and the parts that its answers fill in."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from typing import Any, Final

from dash import dcc, html

from shardtoll.dashboards.app.acts import CHOICES, FIELD
from shardtoll.dashboards.app.filters import LONGEST_NAME, Filter, absent
from shardtoll.dashboards.app.source import RunEntry, Snapshot
from shardtoll.dashboards.app.state import ReaderPlace, keys
from shardtoll.dashboards.facts import summary
from shardtoll.dashboards.page import page
from shardtoll.dashboards.page.html import tables
from shardtoll.dashboards.page.html.page_bill import bill
from shardtoll.dashboards.page.views.views import VIEWS
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Report
from shardtoll.ledger.words import human

POLL_MS: Final = 2000
"""A new step is shown within two polls and the time its analysis takes."""
_CHOICES_MOST: Final = 2000
_STORES: Final = (
    "seen",
    "subject",
    "looked",
    "heard",
    "bill-data",
    "drawing",
    "drawn",
    "numbers-data",
    "followed",
)
"""Data from answers for the page's script, and data that questions are compared with."""


def layout() -> html.Div:
    """Return the page's frame."""
    return html.Div(
        [
            dcc.Location(id="address", refresh=False),
            *(dcc.Store(id=name, data=None) for name in _STORES),
            dcc.Interval(id="clock", interval=POLL_MS),
            html.A("Skip to the figure", href="#shown", className="skip"),
            html.Header(
                [
                    html.H1(["shardtoll ", html.Span("what each collective of a training step costs")]),
                    html.Div(
                        [
                            html.Span(id="crumbs"),
                            html.Span(id="status", role="status", **_aria(live="polite")),
                        ],
                        className="bar",
                    ),
                ]
            ),
            html.Div(id="trouble"),
            html.Main([html.Div(id="list"), html.Div(_board(), id="board", hidden=True)]),
        ],
        id="page",
    )


def _aria(**names: str) -> dict[str, Any]:
    """Return attributes by which a screen reader names an element."""
    return {f"aria-{name}": value for name, value in names.items()}


def _board() -> list[Any]:
    return [
        html.Div(id="head"),
        html.Form(_filters(), className="filters", id="filters", **_aria(label="filters")),
        html.Div(id="only", role="status"),
        html.Div(
            [
                html.Section(
                    [
                        html.H2("The bill", id="bill"),
                        html.P(
                            "Errors, warnings, infos, each by what its fix saves. Times and bytes are per "
                            "step, each on the rank where it is largest. Open a finding to light up its "
                            "marks in the figures.",
                            className="lead",
                        ),
                        html.Div(
                            [
                                html.P(id="picked-words", **_aria(live="polite")),
                                html.Button("clear", id="picked-clear", type="button", hidden=True),
                            ],
                            id="picked",
                            className="lamp",
                        ),
                        html.Div(id="findings"),
                    ],
                    className="side",
                    **_aria(labelledby="bill"),
                ),
                html.Section(
                    [
                        html.Nav(id="views", **_aria(label="views")),
                        html.Button("Reset zoom", id="unzoom", type="button", hidden=True),
                        html.Div(id="shown", tabIndex="-1"),
                        html.Div(id="numbers"),
                    ],
                    className="shown",
                    **_aria(label="figure"),
                ),
            ],
            className="columns",
        ),
        html.Div(id="rest"),
        html.P(id="told", className="unseen", **_aria(live="polite")),
    ]


def _filters() -> list[Any]:
    parts: list[Any] = [
        html.Label(
            [
                html.Span("ranks"),
                dcc.Input(
                    id=f"{FIELD}ranks", type="text", debounce=True, placeholder="all, or 0-3,8", maxLength=400
                ),
            ]
        )
    ]
    for name in CHOICES:
        # The list's own button is what a label would name; it gets the name of its place.
        parts.append(
            html.Label(
                [
                    html.Span("findings" if name == "kinds" else name),
                    dcc.Dropdown(id=FIELD + name, options=[], value=[], multi=True, placeholder="all"),
                ]
            )
        )
    parts.append(html.Button("Clear", id="clear", type="button"))
    return parts


def choices(report: Report | None, chosen: Filter) -> list[list[dict[str, str]]]:
    """Return what each of the `CHOICES` offers: what the run has, and what is chosen already."""
    offered: list[Iterable[str | None]] = [()] * len(CHOICES)
    if report is not None:
        offered = [
            {group.name for group in report.groups} | _words(report, "collectives", "group"),
            _words(report, "collectives", "module") | _words(report, "computes", "module"),
            _words(report, "collectives", "phase") | _words(report, "computes", "phase"),
            {finding.kind for finding in report.findings},
        ]
    return [
        # A list drops a value that it does not offer.
        _options({*values, *getattr(chosen, name)})
        for name, values in zip(CHOICES, offered, strict=True)
    ]


def _words(report: Report, table: str, column: str) -> set[str | None]:
    return set(report.tables[table].column(column).unique().to_pylist())


def _options(values: Iterable[str | None]) -> list[dict[str, str]]:
    # Names too long for a link are not offered.
    names = sorted({value for value in values if value is not None and len(value) <= LONGEST_NAME})
    named = [(value, clip(value, 80) or "(root)") for value in names[:_CHOICES_MOST]]
    # `search`: otherwise the list makes an index of every part of every value.
    return [{"label": label, "value": value, "search": label} for value, label in named]


def answer(report: Report, whole: Report) -> dict[str, Any]:
    """Return the parts of a run that the page's script puts in as HTML, and each finding's key."""
    left = _none_left(report, whole)
    return {
        "head": page.head(whole, left or whole.verdict),
        "findings": f'<p class="none">{escape(left)}</p>' if left else bill(report),
        "rest": tables.late(report) + tables.hta(report) + tables.notices(report),
        "keys": keys(report.findings),
    }


def _none_left(report: Report, whole: Report) -> str:
    """Return that the filters leave no finding, which does not mean a good run; empty if they leave any."""
    if report.findings or not whole.findings:
        return ""
    some = human.plural(len(whole.findings), "finding")
    tables = ("collectives", "computes", "steps")
    if not any(report.tables[name].num_rows for name in tables):
        return f"Nothing of this run fits the filters. Without them there {_are(whole)} {some}."
    return f"No finding fits the filters. Without them there {_are(whole)} {some}."


def _are(report: Report) -> str:
    return "is" if len(report.findings) == 1 else "are"


def views(place: ReaderPlace, shown: Sequence[str]) -> html.Ul:
    """Return links to the views that this report has something for."""
    links = []
    for view in VIEWS:
        if view.name not in shown and view.name != place.view:
            continue
        here = view.name == place.view
        target = replace(place, view=view.name, zoom=place.zoom if here else ()).to_query() or "/"
        current = _aria(current="page") if here else {}
        links.append(
            html.Li(
                dcc.Link(view.title, href=target, refresh=False, id=f"view-{view.name}"),
                className="here" if here else "",
                **current,
            )
        )
    return html.Ul(links)


def crumbs(place: ReaderPlace, single: bool) -> list[Any]:
    """Return where this is: the list of runs, and the run."""
    if single or place.run is None:
        return []
    return [dcc.Link("All runs", href="/", refresh=False), " / ", html.B(clip(place.run, 200)), " "]


def status(snapshot: Snapshot) -> str:
    """Return how fresh the page is, in a few words."""
    words = []
    if snapshot.report is not None:
        steps = human.plural(summary.step_count(snapshot.report), "step")
        words.append(f"{'live, ' if snapshot.live else ''}{steps}")
    if snapshot.analysing:
        words.append(
            "reading newer steps" if snapshot.report is not None else "reading and analysing the run"
        )
    return " · ".join(words)


def only(chosen: Filter, report: Report | None) -> list[Any]:
    """Return in words the active filters, those that match nothing in the run, and invalid ones of a link."""
    words = [chosen.words()] if chosen else []
    if report is not None:
        words += [f"{why[0].upper()}{why[1:]}." for why in absent(report, chosen)]
    words += [f"Not used: {why}." for why in chosen.refused[:5]]
    return [html.P(text, className="note") for text in words]


def trouble(text: str | None) -> list[Any]:
    """Return the error as a paragraph; empty if there is none."""
    return [] if not text else [html.P(clip(text, 1000), className="trouble", role="alert")]


def listed(entries: Sequence[RunEntry]) -> list[Any]:
    """Return the runs as a table, each with its link."""
    if not entries:
        return [
            html.P(
                "There is no run here yet. The page shows the first one when it is written.", className="none"
            )
        ]
    head = html.Thead(
        html.Tr(
            [
                html.Th(name, scope="col")
                for name in ("run", "time (UTC)", "ranks", "steps", "fabric", "first on the bill")
            ]
        )
    )
    body = html.Tbody([_line(entry) for entry in entries])
    parts: list[Any] = [
        html.H2(human.plural(len(entries), "run")),
        html.Div(html.Table([head, body], className="runs"), className="panel"),
    ]
    kinds = {entry.kind for entry in entries}
    if "report" in kinds and len(kinds) > 1:
        parts.append(html.P(_TWICE, className="note"))
    return parts


_TWICE: Final = (
    "A saved report is listed next to its run. It keeps the floors of its own fabric. Runs and traces are "
    "analysed here, for the fabric of --fabric, or for the one that device and backend suggest. So tolls "
    "and floors of the two may differ."
)


def _line(entry: RunEntry) -> html.Tr:
    name = dcc.Link(clip(entry.name, 200), href=ReaderPlace(run=entry.name).to_query(), refresh=False)
    kind = html.Span(entry.kind, className=f"badge {entry.kind}")
    first: Any = (
        clip(entry.dearest, 200)
        if entry.dearest
        else "not read yet"
        if entry.steps is None
        else "nothing found"
    )
    if entry.error:
        first = html.Span(clip(entry.error, 300), className="wrong")
    return html.Tr(
        [
            html.Td([name, " ", kind]),
            html.Td(_when(entry.modified_ns)),
            html.Td(human.UNKNOWN if entry.world_size is None else f"{entry.world_size:,}", className="num"),
            html.Td("" if entry.steps is None else f"{entry.steps:,}", className="num"),
            html.Td(clip(entry.fabric or "", 60)),
            html.Td(first),
        ]
    )


def _when(unix_ns: int | None) -> str:
    if unix_ns is None:
        return human.UNKNOWN
    try:
        moment = datetime.datetime.fromtimestamp(unix_ns // 10**9, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return human.UNKNOWN
    return moment.strftime("%Y-%m-%d %H:%M:%S")
