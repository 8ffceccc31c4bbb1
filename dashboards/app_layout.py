"""What stands on the server's page before anything is known, and the parts its answers fill in."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from dash import dcc, html

from shardtoll.dashboards import human, page_hta, page_late, page_tables, summary
from shardtoll.dashboards.app_acts import CHOICES
from shardtoll.dashboards.app_figure import CONFIG
from shardtoll.dashboards.app_html import components
from shardtoll.dashboards.app_state import Place, keys
from shardtoll.dashboards.figure import ASKED_LEAD
from shardtoll.dashboards.filters import LONGEST_NAME, Filter, absent
from shardtoll.dashboards.page_bill import bill
from shardtoll.dashboards.source import RunEntry, Snapshot
from shardtoll.dashboards.text import clean, clip
from shardtoll.dashboards.views import VIEWS, View
from shardtoll.ledger import Report

POLL_MS: Final = 2000
"""A new step is shown within two polls and the time its analysis takes."""
_CHOICES_MOST: Final = 2000
SERVED: Final = {
    "timeline": (
        "One row a rank, or one for each of its streams or groups. Drag to zoom: the server then sends what "
        "lies there in detail. Double-click goes back. Orange under a collective is its exposed time: the "
        "length is measured, its place inside the collective is not, and it is drawn at the end. Hatched "
        "yellow is waiting for the last rank to arrive. Click a collective: a line joins its arrivals on all "
        f"ranks and ends bold at the last. {ASKED_LEAD}"
    )
}
"""Leads of views that are read otherwise here than on the page."""


def layout() -> html.Div:
    """Return the page's frame."""
    return html.Div(
        [
            dcc.Location(id="address", refresh=False),
            dcc.Store(id="scheme", data=None),
            dcc.Store(id="seen", data=None),
            dcc.Store(id="subject", data=None),
            dcc.Store(id="looked", data=None),
            dcc.Store(id="opened", data=None),
            dcc.Store(id="heard", data=None),
            dcc.Interval(id="clock", interval=POLL_MS),
            html.A("Skip to the figure", href="#figure-panel", className="skip"),
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
    """Return attributes that tell a screen reader what an element is."""
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
                            "Errors first, then by toll. Times and bytes are per step, each on the rank "
                            "where it is largest. Open a finding to light up its marks in the figures.",
                            className="lead",
                        ),
                        html.Div(id="findings"),
                    ],
                    className="side",
                    **_aria(labelledby="bill"),
                ),
                html.Section(
                    [
                        html.Nav(id="views", **_aria(label="views")),
                        html.H2(id="title"),
                        html.Div(
                            [html.P(id="picked", className="note", role="status"), _graph()],
                            className="panel",
                            id="figure-panel",
                            tabIndex="-1",
                        ),
                        html.Div(id="notes"),
                        html.P(id="lead", className="lead"),
                        html.Div(id="numbers"),
                    ],
                    className="shown",
                    **_aria(label="figure"),
                ),
            ],
            className="columns",
        ),
        html.Div(id="rest"),
    ]


def _graph() -> html.Div:
    button = html.Button("Reset zoom", id="unzoom", type="button", hidden=True)
    return html.Div([button, dcc.Graph(id="figure", config=CONFIG, figure={"data": [], "layout": {}})])


def _filters() -> list[Any]:
    parts: list[Any] = [
        html.Label(
            [
                html.Span("ranks"),
                dcc.Input(id="ranks", type="text", debounce=True, placeholder="all, or 0-3,8", maxLength=400),
            ]
        )
    ]
    for name in CHOICES:
        # The list's own button is what a label would name; it gets the name of its place.
        parts.append(
            html.Label(
                [
                    html.Span("findings" if name == "kinds" else name),
                    dcc.Dropdown(id=name, options=[], value=[], multi=True, placeholder="all"),
                ]
            )
        )
    parts.append(html.Button("Clear", id="clear", type="button"))
    return parts


def choices(report: Report | None, chosen: Filter) -> list[list[dict[str, str]]]:
    """Return what each of the `CHOICES` offers: what the run has, and what is chosen already."""
    found: list[Iterable[str | None]] = [()] * len(CHOICES)
    if report is not None:
        found = [
            {group.name for group in report.groups} | _words(report, "collectives", "group"),
            _words(report, "collectives", "module") | _words(report, "computes", "module"),
            _words(report, "collectives", "phase") | _words(report, "computes", "phase"),
            {finding.kind for finding in report.findings},
        ]
    return [
        # A list drops a value that it does not offer.
        _options({*values, *getattr(chosen, name)})
        for name, values in zip(CHOICES, found, strict=True)
    ]


def _words(report: Report, table: str, column: str) -> set[str | None]:
    return set(report.tables[table].column(column).unique().to_pylist())


def _options(values: Iterable[str | None]) -> list[dict[str, str]]:
    # Names too long for a link are not offered.
    known = sorted({value for value in values if value is not None and len(value) <= LONGEST_NAME})
    named = [(value, clip(value, 80) or "(root)") for value in known[:_CHOICES_MOST]]
    # `search`: otherwise the list makes an index of every part of every value.
    return [{"label": label, "value": value, "search": label} for value, label in named]


def head(report: Report, whole: Report) -> list[Any]:
    """Return the headline of what is shown, and the fault and the facts of the whole run."""
    sentence = _none_left(report, whole) or summary.headline(report)
    fine = "" if whole.findings else " fine"
    found: list[Any] = [html.P(clean(sentence), id="headline", className=f"headline{fine}")]
    if whole.headline:
        found.append(html.P(clip(whole.headline, 600), className="fault"))
    found.append(html.Dl(components(page_tables.facts(whole)), className="facts"))
    return found


def _none_left(report: Report, whole: Report) -> str:
    """Return that the filters leave no finding, which is no praise of the run; nothing where they do."""
    if report.findings or not whole.findings:
        return ""
    some = human.plural(len(whole.findings), "finding")
    tables = ("collectives", "computes", "steps")
    if not any(report.tables[name].num_rows for name in tables):
        return f"Nothing of this run fits the filters. Without them there {_are(whole)} {some}."
    return f"No finding fits the filters. Without them there {_are(whole)} {some}."


def _are(report: Report) -> str:
    return "is" if len(report.findings) == 1 else "are"


def findings(report: Report, whole: Report, opened: Sequence[str]) -> list[Any]:
    """Return the bill: each finding opens at a click, which also picks it."""
    if left := _none_left(report, whole):
        return [html.P(left, className="none")]
    key_of = {number: key for key, number in keys(report.findings).items()}
    current: list[str] = [""]

    def extra(tag: str, given: dict[str, str]) -> dict[str, Any]:
        name = given.get("id", "")
        if tag == "details" and name.startswith("finding-") and name[8:].isdecimal():
            current[0] = key = key_of.get(int(name[8:]), "")
            return {
                "id": {"part": "finding", "key": key},
                "open": key in opened,
                "data-finding": name[8:],
                "data-key": key,
            }
        if tag == "summary" and current[0]:
            key, current[0] = current[0], ""
            return {"id": {"part": "pick", "key": key}, "n_clicks": 0}
        return {}

    return components(bill(report), extra)


def rest(report: Report) -> list[Any]:
    """Return what the page says below its figures."""
    return components(page_late.section(report) + page_hta.section(report) + page_tables.notices(report))


def views(place: Place, shown: Sequence[str]) -> html.Ul:
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


def crumbs(place: Place, single: bool) -> list[Any]:
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
    """Return in words what is filtered, what the run has nothing of, and what of a link cannot be."""
    words = [chosen.words()] if chosen else []
    if report is not None:
        words += [f"{why[0].upper()}{why[1:]}." for why in absent(report, chosen)]
    return notes([*words, *(f"Not used: {why}." for why in chosen.refused[:5])])


def notes(texts: Iterable[str]) -> list[Any]:
    """Return sentences under a figure."""
    return [html.P(text, className="note") for text in texts]


def lead(view: View) -> str:
    """Return how a view is read."""
    return SERVED.get(view.name, view.lead)


def trouble(text: str | None) -> list[Any]:
    """Return what went wrong, as a paragraph; nothing where nothing did."""
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
    found: list[Any] = [
        html.H2(human.plural(len(entries), "run")),
        html.Div(html.Table([head, body], className="runs"), className="panel"),
    ]
    kinds = {entry.kind for entry in entries}
    if "report" in kinds and len(kinds) > 1:
        found.append(html.P(_TWICE, className="note"))
    return found


_TWICE: Final = (
    "A saved report stands beside the run it was made from. It keeps the floors of the fabric it was made "
    "with; runs and traces are analysed here, for the fabric of --fabric or else for the one that device and "
    "backend choose. So tolls and floors of the two may differ."
)


def _line(entry: RunEntry) -> html.Tr:
    name = dcc.Link(clip(entry.name, 200), href=Place(run=entry.name).to_query(), refresh=False)
    kind = html.Span(entry.kind, className=f"badge {entry.kind}")
    told: Any = (
        clip(entry.dearest, 200)
        if entry.dearest
        else "not read yet"
        if entry.steps is None
        else "nothing found"
    )
    if entry.error:
        told = html.Span(clip(entry.error, 300), className="wrong")
    return html.Tr(
        [
            html.Td([name, " ", kind]),
            html.Td(_when(entry.modified_ns)),
            html.Td(human.UNKNOWN if entry.world_size is None else f"{entry.world_size:,}", className="num"),
            html.Td("" if entry.steps is None else f"{entry.steps:,}", className="num"),
            html.Td(clip(entry.fabric or "", 60)),
            html.Td(told),
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
