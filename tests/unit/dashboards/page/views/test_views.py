"""Which views have something to show is known without drawing those that always have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardtoll.dashboards.app import board as app_board
from shardtoll.dashboards.app.board import Board
from shardtoll.dashboards.app.filters import Filter, apply
from shardtoll.dashboards.app.source import Snapshot
from shardtoll.dashboards.app.state import ReaderPlace
from shardtoll.dashboards.page.html.figure import Figure
from shardtoll.dashboards.page.views.views import VIEWS, View
from shardtoll.ledger import Report
from tests import sample_reports


def nothing_fits() -> Report:
    return apply(sample_reports.report(), Filter(modules=("no.such.module",)))


REPORTS: dict[str, Callable[[], Report]] = {
    **{name: getattr(sample_reports, name) for name in ("report", "hostile", "unknown", "empty")},
    "nothing fits": nothing_fits,
}


def drawn(view: View, report: Report) -> bool:
    """Whether drawing it and writing its table gives anything."""
    figure = view.figure(report)
    table = view.numbers(report) if view.alone and view.numbers is not None else ""
    return bool(figure.data or figure.notes or table)


@pytest.mark.parametrize("name", REPORTS)
def test_a_view_is_offered_where_drawing_it_gives_something(name: str):
    report = REPORTS[name]()
    assert [view.name for view in VIEWS if view.says(report)] == [
        view.name for view in VIEWS if drawn(view, report)
    ]


def test_what_was_drawn_to_offer_it_is_not_drawn_again(monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []

    def counted(view: View) -> View:
        def figure(report: Report) -> Figure:
            calls.append(view.name)
            return view.figure(report)

        return replace(view, figure=figure)

    views = tuple(counted(view) for view in VIEWS)
    monkeypatch.setattr(app_board, "VIEWS", views)
    snapshot = Snapshot(sample_reports.report(), "v1")
    board = Board(source=None)  # type: ignore[arg-type]
    offered = board.shown("run", snapshot, Filter())
    assert {"anatomy", "roofline", "timeline"} <= set(offered)
    assert not {"anatomy", "roofline", "timeline"} & set(calls)
    for name in offered:
        board.figure("run", snapshot, ReaderPlace(run="run", view=name))
    # The timeline is drawn from a window of the report, not by its view.
    assert sorted(calls) == sorted({view.name for view in VIEWS} - {"timeline"})
