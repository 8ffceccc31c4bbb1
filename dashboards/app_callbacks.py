"""The server's answers: the address decides what is shown, and what a reader does changes the address."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Final

from dash import ALL, Dash, Input, Output, State, ctx, no_update

from shardtoll.dashboards import app_layout, human, summary
from shardtoll.dashboards.app_acts import CHOICES, FIELDS, Controls, chosen, moves_here, picked, values
from shardtoll.dashboards.app_board import FIRST_WAIT_S, Board, view_of
from shardtoll.dashboards.app_clicks import clicked_at
from shardtoll.dashboards.app_figure import plotted
from shardtoll.dashboards.app_html import components
from shardtoll.dashboards.app_lit import whole
from shardtoll.dashboards.app_state import Place, keys
from shardtoll.dashboards.source import Snapshot

_NO_RUN: Final = Snapshot(None, "0")


def add_callbacks(app: Dash, board: Board) -> None:
    """Give the app its answers."""
    _add_polling(app, board)
    _add_run(app, board)
    _add_figure(app, board)
    _add_choices(app, board)


def _seen(
    board: Board, query: str | None, wait_s: float = 0.0, told: object = None
) -> tuple[Place, str | None, Snapshot]:
    """Return where the reader is, which run that is, and what is known of it.

    `told` is what the page was told to show: of a run that grows all its parts then show the same steps.
    """
    place = Place.from_query(query or "")
    run = board.run_of(place)
    if run is None:
        return place, None, _NO_RUN
    return place, run, board.told(run, told) or board.snapshot(run, wait_s)


def _add_polling(app: Dash, board: Board) -> None:
    @app.callback(
        Output("seen", "data"),
        Output("status", "children"),
        Output("trouble", "children"),
        Output("crumbs", "children"),
        Output("list", "children"),
        Output("board", "hidden"),
        Output("subject", "data"),
        Output("looked", "data"),
        Output("only", "children"),
        Input("clock", "n_intervals"),
        Input("address", "search"),
        State("seen", "data"),
    )
    def poll(_ticks: int | None, query: str | None, before: Any) -> tuple[Any, ...]:
        """Say what is new; what stayed as it was is not sent again."""
        place, run, snapshot = _seen(board, query, FIRST_WAIT_S)
        entries = board.source.runs() if run is None else []
        version = (
            snapshot.version
            if run is not None
            else hashlib.sha256(repr(entries).encode("utf-8", "replace")).hexdigest()
        )
        if run is not None:
            board.tell(run, snapshot)
        now = {
            "run": run,
            "version": version,
            "state": [snapshot.live, snapshot.analysing, snapshot.error],
            "only": place.only.to_query(),
            "view": place.view,
        }
        old = before if isinstance(before, dict) else {}
        if now == old:
            return (no_update,) * 9
        fresh = any(now[name] != old.get(name) for name in ("run", "version"))
        about = {"run": run, "version": version, "only": now["only"]}
        same_subject = not fresh and now["only"] == old.get("only")
        return (
            now,
            app_layout.status(snapshot) if run is not None else human.plural(len(entries), "run"),
            app_layout.trouble(snapshot.error),
            app_layout.crumbs(place, board.source.single),
            (app_layout.listed(entries) if fresh else no_update) if run is None else [],
            run is None or snapshot.report is None,
            no_update if same_subject else about,
            no_update if same_subject and place.view == old.get("view") else {**about, "view": place.view},
            app_layout.only(place.only, snapshot.report) if run is not None else [],
        )


def _add_run(app: Dash, board: Board) -> None:
    @app.callback(
        Output("head", "children"),
        Output("findings", "children"),
        Output("rest", "children"),
        Input("subject", "data"),
        State("address", "search"),
        State("opened", "data"),
        prevent_initial_call=True,
    )
    def run(subject: Any, query: str | None, opened: Any) -> tuple[Any, ...]:
        """Return the bill and what stands around it."""
        place, name, snapshot = _seen(board, query, told=subject)
        report = None if name is None else board.filtered(name, snapshot, place.only)
        if report is None or snapshot.report is None:
            return [], [], []
        return (
            app_layout.head(report, snapshot.report),
            app_layout.findings(report, snapshot.report, _opened(opened, place)),
            app_layout.rest(report),
        )

    @app.callback(
        Output({"part": "finding", "key": ALL}, "className"),
        Input("address", "search"),
        Input("findings", "children"),
        State({"part": "finding", "key": ALL}, "id"),
        State({"part": "finding", "key": ALL}, "className"),
        prevent_initial_call=True,
    )
    def mark(query: str | None, _bill: Any, ids: list[dict[str, str]], names: list[str]) -> list[str]:
        """Frame the picked finding."""
        picked = Place.from_query(query or "").finding
        bare = [" ".join(word for word in (name or "").split() if word != "picked") for name in names]
        return [
            f"{name} picked" if one.get("key") == picked else name
            for one, name in zip(ids, bare, strict=True)
        ]


def _opened(opened: Any, place: Place) -> list[str]:
    """Return which findings stand open; before any was clicked, the one that a link picks."""
    if isinstance(opened, list):
        return [key for key in opened if isinstance(key, str)]
    return [place.finding] if place.finding else []


def _add_figure(app: Dash, board: Board) -> None:
    @app.callback(
        Output("figure", "figure"),
        Output("figure", "style"),
        Output("figure-panel", "hidden"),
        Output("picked", "children"),
        Output("unzoom", "hidden"),
        Output("notes", "children"),
        Output("title", "children"),
        Output("lead", "children"),
        Input("address", "search"),
        Input("looked", "data"),
        Input("scheme", "data"),
        Input("figure", "clickData"),
        prevent_initial_call=True,
    )
    def draw(query: str | None, looked: Any, scheme: str | None, clicked: Any) -> tuple[Any, ...]:
        """Return the view's figure: zoomed, lit and in the reader's colours; with it its own heading."""
        place, run, snapshot = _seen(board, query, told=looked)
        figure = None if run is None or scheme is None else board.figure(run, snapshot, place)
        report = None if run is None else board.filtered(run, snapshot, place.only)
        if figure is None or report is None or run is None:
            return {"data": [], "layout": {}}, {}, True, "", True, [], "", ""
        view = view_of(place.view)
        number = keys(report.findings).get(place.finding or "")
        drawn = plotted(
            figure, scheme or "light", place.zoom, number, f"{run}/{place.view}", clicked_at(clicked, figure)
        )
        return (
            drawn,
            # Room for it before it is drawn, so that nothing below jumps.
            {"height": f"{drawn['layout'].get('height', 450)}px"},
            figure.empty,
            _lit_words(number, figure.marks.get(number or 0), figure.empty),
            not place.zoom,
            app_layout.notes(figure.notes),
            view.title,
            app_layout.lead(view),
        )

    @app.callback(
        Output("views", "children"),
        Input("address", "search"),
        Input("looked", "data"),
        prevent_initial_call=True,
    )
    def offer(query: str | None, looked: Any) -> Any:
        """Return links to the views; apart from the figure, which must not wait for all others."""
        place, run, snapshot = _seen(board, query, told=looked)
        if run is None or snapshot.report is None:
            return []
        return app_layout.views(place, board.shown(run, snapshot, place.only))

    @app.callback(
        Output("numbers", "children"),
        Input("looked", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def numbers(looked: Any, query: str | None) -> list[Any]:
        """Return the view's numbers as a table, which may come after the figure and so names the view."""
        place, run, snapshot = _seen(board, query, told=looked)
        report = None if run is None else board.filtered(run, snapshot, place.only)
        if report is None:
            return []
        view = view_of(place.view)
        text = "" if view.numbers is None else view.numbers(report)
        if not text:
            return []
        return components(
            f'<details class="more"><summary>{view.title}, as a table</summary>{text}</details>'
        )


def _lit_words(number: int | None, marks: Any, empty: bool) -> str:
    if number is None or empty:
        return ""
    count = sum(map(len, marks.values())) if marks else 0
    if not count:
        return f"Finding #{number} speaks of nothing that is drawn here."
    return f"Finding #{number}: {human.plural(count, 'mark')} here {'is' if count == 1 else 'are'} its."


def _add_choices(app: Dash, board: Board) -> None:
    @app.callback(
        Output("address", "search"),
        Output("opened", "data"),
        Output("heard", "data"),
        *(Output(name, "value") for name in FIELDS),
        *(Output(name, "options") for name in CHOICES),
        Input("address", "search"),
        Input("subject", "data"),
        *(Input(name, "value") for name in FIELDS),
        Input("clear", "n_clicks"),
        Input("unzoom", "n_clicks"),
        Input("figure", "relayoutData"),
        Input("figure", "clickData"),
        Input({"part": "pick", "key": ALL}, "n_clicks"),
        State({"part": "pick", "key": ALL}, "id"),
        State("opened", "data"),
        State("heard", "data"),
    )
    def act(query: str | None, _subject: Any, *rest: Any) -> tuple[Any, ...]:
        """Write what the reader did into the address, and what the address says into the filters.

        Each answer does all of both: it may be the only one of several questions that is heard.
        """
        shown = dict(zip(FIELDS, rest, strict=False))
        clear, unzoom, moved, clicked, counts, ids, opened, heard = rest[len(FIELDS) :]
        picks = {str(one.get("key")): count or 0 for one, count in zip(ids, counts, strict=True)}
        now = Controls(shown, clear or 0, unzoom or 0, picks, moved, clicked)
        causes = _causes()
        place, run, snapshot = _seen(board, query)
        before = heard if isinstance(heard, dict) else {}
        after = chosen(place, now, heard, causes)
        stood = stand = _opened(opened, place)
        for key in picked(now, place, heard, causes):
            shut = key in stand
            stand = [one for one in stand if one != key] if shut else [*stand, key]
            if not shut or after.finding == key:
                after = replace(after, finding=None if shut else key)
        if clicked and clicked != before.get("clicked") and moves_here(place, heard):
            found = _spoken_of(board, query, clicked)
            if found is not None:
                stand = [*(one for one in stand if one != found), found]
                after = replace(after, finding=found)
        wanted = values(after.only)
        # What stands there already is not written again: a list that is open would shut.
        same = [_same(shown[name], wanted[name]) for name in FIELDS]
        of = [run, snapshot.version, after.only.to_query()]
        marks, options = _offered(snapshot, after, before) if of != before.get("of") else (None, ())
        hears = {**now.heard(after), "of": of, "offered": marks or before.get("offered")}
        return (
            no_update if after == place else after.to_query(),
            no_update if stand == stood else stand,
            no_update if hears == heard else hears,
            *(no_update if same[at] else wanted[name] for at, name in enumerate(FIELDS)),
            *(options or (no_update,) * len(CHOICES)),
        )


def _same(shown: Any, wanted: Any) -> bool:
    """Return whether a control shows what it has to; the order of what was picked is the reader's."""
    return sorted(shown or "") == sorted(wanted) if isinstance(wanted, list) else (shown or "") == wanted


def _offered(snapshot: Snapshot, place: Place, before: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Return a mark of what each list offers, and what it offers where that is new to the page."""
    options = app_layout.choices(snapshot.report, place.only)
    marks = [hashlib.sha256(repr(some).encode("utf-8", "replace")).hexdigest() for some in options]
    old = before.get("offered")
    known = old if isinstance(old, list) and len(old) == len(marks) else [None] * len(marks)
    pairs = zip(marks, known, options, strict=True)
    return marks, [no_update if mark == last else some for mark, last, some in pairs]


def _causes() -> set[str]:
    """Return which controls brought the question; of a finding's line its key."""
    return {str(one.get("key") if isinstance(one, dict) else one) for one in ctx.triggered_prop_ids.values()}


def _spoken_of(board: Board, query: str | None, clicked: Any) -> str | None:
    """Return the key of the dearest finding that speaks of a mark; None where none does."""
    place, run, snapshot = _seen(board, query)
    figure = None if run is None else board.figure(run, snapshot, place)
    report = None if run is None else board.filtered(run, snapshot, place.only)
    at = None if figure is None else clicked_at(clicked, figure)
    if at is None or figure is None or report is None:
        return None
    tolls = {number: finding.toll_ns for number, finding in summary.by_severity(report.findings)}
    speaking = [
        number
        for number, points in figure.marks.items()
        if at[1] in whole(figure, points).get(at[0], ()) and number in tolls
    ]
    best = max(speaking, key=lambda number: (tolls[number] or -1, -number), default=None)
    return next((key for key, number in keys(report.findings).items() if number == best), None)
