"""The server's view of a run, kept while its version, filters and window stay the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from shardtoll.dashboards.app import level_of_detail
from shardtoll.dashboards.app.filters import Filter, apply
from shardtoll.dashboards.app.source import Snapshot, Source
from shardtoll.dashboards.app.state import ReaderPlace
from shardtoll.dashboards.page.html.figure import Figure
from shardtoll.dashboards.page.views import timeline
from shardtoll.dashboards.page.views.timeline_clock import clock
from shardtoll.dashboards.page.views.views import VIEWS, View
from shardtoll.ledger import Report

DRAWN: Final = 1_500
"""Collectives of the timeline drawn one by one: fewer than on the page, as zooming in shows the others."""
TOLD_MOST: Final = 2
"""States of runs that are kept for pages that show them, while a newer one may be there."""
FIRST_WAIT_S: Final = 1.0
"""How long an answer waits for a run's first report; a short run's page then comes at once."""

_T = TypeVar("_T")


class Kept:
    """The last few things made, by key; each is made once however many threads ask."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._made: OrderedDict[Any, tuple[threading.Lock, list[Any]]] = OrderedDict()

    def get(self, key: Any, make: Callable[[], _T]) -> _T:
        """Return what was made for the key, or make it."""
        with self._lock:
            lock, made = self._made.setdefault(key, (threading.Lock(), []))
            self._made.move_to_end(key)
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        with lock:
            if not made:
                made.append(make())
            value: _T = made[0]
            return value


class Board:
    """Reports and figures by the reader's place."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._reports = Kept(6)
        self._figures = Kept(48)
        self._shown = Kept(12)
        self._told: OrderedDict[tuple[str, str], Snapshot] = OrderedDict()
        self._telling = threading.Lock()

    def run_of(self, place: ReaderPlace) -> str | None:
        """Return the run's name; None if the list is to be shown."""
        if place.run is not None or not self.source.single:
            return place.run
        runs = self.source.runs()
        return runs[0].name if runs else ""

    def snapshot(self, run: str, wait_s: float = 0.0) -> Snapshot:
        """Return the present state of the run."""
        return self.source.report(run, wait_s)

    def tell(self, run: str, snapshot: Snapshot) -> None:
        """Keep the state that a reader gets, so that all parts of the page can show that one."""
        with self._telling:
            self._told[run, snapshot.version] = snapshot
            self._told.move_to_end((run, snapshot.version))
            while len(self._told) > TOLD_MOST:
                self._told.popitem(last=False)

    def told(self, run: str, about: object) -> Snapshot | None:
        """Return the state that a page shows; `about` has its run and version. None if it is gone."""
        if not isinstance(about, dict) or about.get("run") != run:
            return None
        with self._telling:
            return self._told.get((run, str(about.get("version"))))

    def filtered(self, run: str, snapshot: Snapshot, only: Filter) -> Report | None:
        """Return the run's last report with the rows the reader wants."""
        report = snapshot.report
        if report is None or only == Filter():
            return report
        return self._reports.get((run, snapshot.version, only), lambda: apply(report, only))

    def figure(self, run: str, snapshot: Snapshot, place: ReaderPlace) -> Figure | None:
        """Return the figure of the place's view, in detail if it is zoomed."""
        report = self.filtered(run, snapshot, place.only)
        if report is None:
            return None
        view = view_of(place.view)
        window = _window(place)
        key = (run, snapshot.version, place.only, view.name, window)
        return self._figures.get(key, lambda: _draw(view, report, window))

    def key(self, snapshot: Snapshot, place: ReaderPlace) -> list[str]:
        """Return the values that the figure of a place depends on, for one run."""
        return [snapshot.version, place.only.to_query(), place.view, str(_window(place))]

    def shown(self, run: str, snapshot: Snapshot, only: Filter) -> list[str]:
        """Return the names of the views that have something for this report."""
        report = self.filtered(run, snapshot, only)
        if report is None:
            return []
        return self._shown.get(
            (run, snapshot.version, only), lambda: self._with_something(run, snapshot, report, only)
        )

    def _with_something(self, run: str, snapshot: Snapshot, report: Report, only: Filter) -> list[str]:
        def figure(view: View) -> Callable[[], Figure]:
            key = (run, snapshot.version, only, view.name, None)
            return lambda: self._figures.get(key, lambda: _draw(view, report, None))

        # A figure that is drawn for this question is kept: its reader is likely to ask for it next.
        return [view.name for view in VIEWS if view.says(report, figure(view))]


def view_of(name: str) -> View:
    """Return the view of that name, the first one if there is none."""
    return next((view for view in VIEWS if view.name == name), VIEWS[0])


def _window(place: ReaderPlace) -> tuple[int, int] | None:
    """Return the zoomed part of the timeline in ns; None if all of it is seen."""
    for axis, low, high in place.zoom if place.view == "timeline" else ():
        if axis == "x":
            start, end = sorted((low, high))
            # Within what 64 bits hold: the ends come from an address.
            most = 2**62
            return int(max(-most, min(most, start * 1e6))), int(max(-most, min(most, end * 1e6)))
    return None


def _draw(view: View, report: Report, window: tuple[int, int] | None) -> Figure:
    if view.name != "timeline":
        return view.figure(report)
    seen = level_of_detail.window(report, *(window or (None, None)))
    figure = timeline.figure(seen.report, DRAWN, clock(report))
    if figure.empty and window is not None:
        return replace(figure, notes=["No collective lies in this stretch of time."])
    return replace(figure, notes=[*seen.notes, *figure.notes])
