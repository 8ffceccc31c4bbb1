"""The server's answers: the address decides what is shown, and the reader's actions change the address."""

from __future__ import annotations

import hashlib
from html import escape
from typing import Any, Final

import flask
from dash import ClientsideFunction, Dash, Input, Output, State, ctx, no_update

from shardtoll.dashboards.app import layout
from shardtoll.dashboards.app.acts import CHOICES, FIELD, FIELDS, Controls, chosen, values
from shardtoll.dashboards.app.board import FIRST_WAIT_S, Board, view_of
from shardtoll.dashboards.app.source import Snapshot
from shardtoll.dashboards.app.state import ReaderPlace
from shardtoll.dashboards.page.html.frame import drawn
from shardtoll.dashboards.page.page import section
from shardtoll.ledger.words import human

_NO_RUN: Final = Snapshot(None, "0")


def add_callbacks(app: Dash, board: Board) -> None:
    """Give the app its answers."""
    _add_polling(app, board)
    _add_answers(app, board)
    _add_choices(app, board)
    connect: Any = app.clientside_callback
    # By its name: as text it would need `unsafe-eval`.
    connect(
        ClientsideFunction("shardtoll", "follow"),
        Output("followed", "data"),
        Input("address", "search"),
        Input("bill-data", "data"),
        Input("drawing", "data"),
        Input("numbers-data", "data"),
    )


def _seen(
    board: Board, query: object, wait_s: float = 0.0, about: object = None
) -> tuple[ReaderPlace, str | None, Snapshot]:
    """Return where the reader is, which run that is, and its state.

    `about` is the state that the page was asked to show. All its parts then show the same steps of a growing
    run.
    """
    _page_sends(query is None or isinstance(query, str))
    place = ReaderPlace.from_query(str(query or ""))
    run = board.run_of(place)
    if run is None:
        return place, None, _NO_RUN
    return place, run, board.told(run, about) or board.snapshot(run, wait_s)


def _page_sends(it: bool) -> None:
    """Refuse the request with 400 if its content cannot come from our page."""
    if not it:
        flask.abort(400)


def _is_field(name: str, value: object) -> bool:
    """Return whether a control of this name can have the value: text for ranks, else a list of texts."""
    if name == "ranks":
        return value is None or isinstance(value, str)
    return value is None or (isinstance(value, list) and all(isinstance(each, str) for each in value))


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
        """Return the changes; unchanged parts are not sent again."""
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
            layout.status(snapshot) if run is not None else human.plural(len(entries), "run"),
            layout.trouble(snapshot.error),
            layout.crumbs(place, board.source.single),
            (layout.listed(entries) if fresh else no_update) if run is None else [],
            run is None or snapshot.report is None,
            no_update if same_subject else about,
            no_update if same_subject and place.view == old.get("view") else {**about, "view": place.view},
            layout.only(place.only, snapshot.report) if run is not None else [],
        )


def _add_answers(app: Dash, board: Board) -> None:
    @app.callback(
        Output("bill-data", "data"),
        Input("subject", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def bill(subject: Any, query: str | None) -> dict[str, Any] | None:
        """Return the bill and what stands around it, for the page's script."""
        place, run, snapshot = _seen(board, query, about=subject)
        report = None if run is None else board.filtered(run, snapshot, place.only)
        return None if report is None or snapshot.report is None else layout.answer(report, snapshot.report)

    @app.callback(
        Output("drawing", "data"),
        Output("drawn", "data"),
        Input("address", "search"),
        Input("looked", "data"),
        State("drawn", "data"),
        prevent_initial_call=True,
    )
    def draw(query: str | None, looked: Any, before: Any) -> tuple[Any, Any]:
        """Return the view's section and figure; nothing new if only its lights or its zoom changed."""
        place, run, snapshot = _seen(board, query, about=looked)
        key = None if run is None else [run, *board.key(snapshot, place)]
        if run is not None and key == before:
            return no_update, no_update
        figure = None if run is None else board.figure(run, snapshot, place)
        if figure is None:
            return None, None
        view = view_of(place.view)
        answer = {
            "name": view.name,
            "of": f"{run}/{view.name}",
            "section": section(view, figure),
            "figure": drawn(figure),
        }
        return answer, key

    @app.callback(
        Output("views", "children"),
        Input("address", "search"),
        Input("looked", "data"),
        prevent_initial_call=True,
    )
    def offer(query: str | None, looked: Any) -> Any:
        """Return links to the views; apart from the figure, which must not wait for all others."""
        place, run, snapshot = _seen(board, query, about=looked)
        if run is None or snapshot.report is None:
            return []
        return layout.views(place, board.shown(run, snapshot, place.only))

    @app.callback(
        Output("numbers-data", "data"),
        Input("looked", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def numbers(looked: Any, query: str | None) -> str:
        """Return the view's numbers as a table, which may come after the figure and so names the view."""
        place, run, snapshot = _seen(board, query, about=looked)
        report = None if run is None else board.filtered(run, snapshot, place.only)
        view = view_of(place.view)
        text = "" if report is None or view.numbers is None else view.numbers(report)
        if not text:
            return ""
        return f'<details class="more"><summary>{escape(view.title)}, as a table</summary>{text}</details>'


def _add_choices(app: Dash, board: Board) -> None:
    @app.callback(
        Output("address", "search"),
        Output("heard", "data"),
        *(Output(FIELD + name, "value") for name in FIELDS),
        *(Output(FIELD + name, "options") for name in CHOICES),
        Input("address", "search"),
        Input("subject", "data"),
        *(Input(FIELD + name, "value") for name in FIELDS),
        Input("clear", "n_clicks"),
        State("heard", "data"),
    )
    def act(query: str | None, _subject: Any, *rest: Any) -> tuple[Any, ...]:
        """Write the filters the reader chose into the address, and what the address says into the filters.

        Each answer does all of both: it may be the only one of several questions that is heard.
        """
        _page_sends(len(rest) == len(FIELDS) + 2)
        shown = dict(zip(FIELDS, rest, strict=False))
        clear, heard = rest[len(FIELDS) :]
        _page_sends(clear is None or isinstance(clear, int))
        known = heard.get("fields") if isinstance(heard, dict) else None
        for controls in (shown, known if isinstance(known, dict) else {}):
            _page_sends(all(_is_field(name, controls.get(name)) for name in FIELDS))
        now = Controls(shown, clear or 0)
        place, run, snapshot = _seen(board, query)
        before = heard if isinstance(heard, dict) else {}
        _page_sends(all(isinstance(each["prop_id"], str) for each in ctx.triggered))
        causes = {each["prop_id"].rpartition(".")[0].removeprefix(FIELD) for each in ctx.triggered} - {""}
        after = chosen(place, now, heard, causes)
        wanted = values(after.only)
        # Unchanged values are not written again: an open list would shut.
        fields = [no_update if _same(shown[name], wanted[name]) else wanted[name] for name in FIELDS]
        of = [run, snapshot.version, after.only.to_query()]
        marks, options = _offered(snapshot, after, before) if of != before.get("of") else (None, ())
        hears = {**now.heard(after), "of": of, "offered": marks or before.get("offered")}
        return (
            no_update if after == place else after.to_query(),
            no_update if hears == heard else hears,
            *fields,
            *(options or (no_update,) * len(CHOICES)),
        )


def _same(shown: Any, wanted: Any) -> bool:
    """Return whether a control shows what it has to; the order of what was picked is the reader's."""
    return sorted(shown or "") == sorted(wanted) if isinstance(wanted, list) else (shown or "") == wanted


def _offered(snapshot: Snapshot, place: ReaderPlace, before: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Return a mark of what each list offers, and what it offers if that is new to the page."""
    options = layout.choices(snapshot.report, place.only)
    marks = [hashlib.sha256(repr(some).encode("utf-8", "replace")).hexdigest() for some in options]
    old = before.get("offered")
    last = old if isinstance(old, list) and len(old) == len(marks) else [None] * len(marks)
    pairs = zip(marks, last, options, strict=True)
    return marks, [no_update if mark == earlier else some for mark, earlier, some in pairs]
