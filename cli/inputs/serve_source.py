"""Reports for the server: made in the background, kept while their files stay the same, few at a time.

One thread reads and analyses, one run after the other; whoever asks gets the last good report meanwhile.
Runs that nobody looks at are left alone, with one exception. Each run of a list on screen is analysed once,
for the line with its highest cost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow.compute as pc

from shardtoll.cli.inputs.inputs import named_fabric
from shardtoll.cli.inputs.serve_inputs import Shown, shown
from shardtoll.cli.inputs.serve_list import ServeItem, look
from shardtoll.cli.inputs.traces import TraceOptions
from shardtoll.dashboards.app.source import RunEntry, Snapshot
from shardtoll.ledger import Ledger, Report, ShardtollError, analyze
from shardtoll.ledger.records.errors import first_line

MOST_REPORTS: Final = 4
"""Reports kept in memory; the one that was asked for longest ago goes first."""
LOOK_S: Final = 1.0
"""Files are looked at no more often than this, and no more than a tenth of the time is spent on it."""
LISTED_S: Final = 30.0
"""So long after a list was shown its runs are still analysed one by one."""
MOST_LISTED: Final = 200
"""Runs of a list that are analysed unasked, the last changed ones."""
MOST_LISTED_BYTES: Final = 64_000_000
"""Runs whose files are larger are analysed only when they are asked for."""
CLOSE_S: Final = 0.3
"""How long an analysis may take to end when the server does."""
NONE: Final = "none"
"""The version of no report."""


@dataclass(slots=True)
class _State:
    place: ServeItem
    shown: Shown
    report: Report | None = None
    live: bool = False
    version: str = NONE
    """Version of `report`."""
    error: str | None = None
    """Why the last version could not be read."""
    gone: str | None = None
    """Why the files could not be looked at the last time."""
    tried: str = NONE
    """The version that was last read, with success or without."""
    seen: str = NONE
    """The version that the files had when they were last looked at."""
    looked_s: float = -1e9
    look_took_s: float = 0.0
    asked_s: float = -1e9
    ended_s: float = -1e9
    """When the last analysis ended."""
    took_s: float = 0.0
    steps: int | None = None
    dearest: str | None = None
    world_size: int | None = None
    fabric: str | None = None


@dataclass(slots=True)
class _Listing:
    states: dict[str, _State] = field(default_factory=dict)
    single: bool = False
    looked_s: float = -1e9
    took_s: float = 0.0
    asked_s: float = -1e9


class Served:
    """The `Source` of everything at one path."""

    def __init__(
        self, path: str, analyze: Callable[[Ledger], Report], options: TraceOptions | None = None
    ) -> None:
        """`analyze` makes the reports. Raises UsageError if there is nothing to show at the path."""
        self._path = path
        self._analyze = analyze
        self._options = options or TraceOptions()
        self._changed = threading.Condition()
        self._looking = threading.Lock()
        self._list = _Listing()
        self._worker: threading.Thread | None = None
        self._closed = False
        self._look()

    @property
    def single(self) -> bool:
        """Whether the path is one thing to show."""
        return self._list.single

    def runs(self) -> list[RunEntry]:
        """Return what there is to see, the last changed first."""
        self._list.asked_s = time.monotonic()
        self._look()
        with self._changed:
            self._start()
            return [_entry(state) for state in self._list.states.values()]

    def report(self, name: str, wait_s: float = 0.0) -> Snapshot:
        """Return the state of the run of that name; its files are looked at, and read in the background."""
        state = self._list.states.get(name)
        if state is None:
            self._look()
            state = self._list.states.get(name)
        if state is None:
            return Snapshot(None, NONE, error="there is no run of that name here (any more)")
        state.asked_s = time.monotonic()
        self._see(state)
        with self._changed:
            self._start()
            if wait_s > 0:
                self._changed.wait_for(lambda: self._closed or _told(state), wait_s)
            behind = state.tried != state.seen or (state.version != state.tried and state.error is None)
            return Snapshot(state.report, state.version, state.live, state.gone or state.error, behind)

    def unreadable(self, wait_s: float) -> str | None:
        """Return why a saved report or traces, served alone, cannot be read; None if that is not known yet.

        A run folder may get its first step later.
        """
        states = list(self._list.states.values())
        if not self.single or states[0].place.kind not in ("report", "traces"):
            return None
        first = self.report(states[0].place.name, wait_s)
        return first.error if first.report is None else None

    def close(self) -> bool:
        """Stop, and return whether an analysis is still under way; it may take minutes and is not awaited."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            worker = self._worker
        if worker is None:
            return False
        # One that does nothing ends at once.
        worker.join(CLOSE_S)
        return worker.is_alive()

    def _look(self) -> None:
        """Look what there is, unless that was done a moment ago."""
        with self._looking:
            begun_s = time.monotonic()
            if begun_s - self._list.looked_s < max(LOOK_S, 10 * self._list.took_s):
                return
            try:
                places, self._list.single = look(self._path, time.time())
            except ShardtollError:
                # On the first look the error is raised. Later, reports stay on show even after their files
                # are gone.
                if self._list.looked_s < 0:
                    raise
                places = [state.place for state in self._list.states.values()]
            with self._changed:
                before = self._list.states
                self._list.states = {
                    place.name: before.get(place.name)
                    or _State(place, shown(place.item, self._options, self._analyze))
                    for place in places
                }
                for place in places:
                    self._list.states[place.name].place = place
            self._list.looked_s = time.monotonic()
            self._list.took_s = self._list.looked_s - begun_s

    def _see(self, state: _State) -> None:
        """Look whether the files of a run changed, unless that was done a moment ago."""
        begun_s = time.monotonic()
        if begun_s - state.looked_s < max(LOOK_S, 10 * state.look_took_s):
            return
        state.looked_s = begun_s
        seen, gone = state.seen, None
        try:
            seen = state.shown.version()
        except (ShardtollError, OSError) as problem:
            gone = first_line(problem)
        with self._changed:
            state.look_took_s = time.monotonic() - begun_s
            state.seen, state.gone = seen, gone
            self._changed.notify_all()

    def _start(self) -> None:
        """Start the thread that reads, at the first need of it."""
        if self._worker is None and not self._closed:
            self._worker = threading.Thread(target=self._work, name="shardtoll-serve", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (state := self._next()) is None:
                    # A run that is due only later is looked at again then.
                    self._changed.wait(LOOK_S / 4)
                if self._closed or state is None:
                    return
            if state.seen == NONE:
                self._see(state)
            with self._changed:
                state.tried = state.seen
            if state.gone is None:
                self._load(state)

    def _next(self) -> _State | None:
        """The run to read next: of those that were asked for the last one, else one of the list."""
        now_s = time.monotonic()
        states = self._list.states.values()
        # A long analysis leaves as much time again to others.
        due = [
            state for state in states if state.tried != state.seen and now_s >= state.ended_s + state.took_s
        ]
        if due:
            return max(due, key=lambda state: state.asked_s)
        if now_s - self._list.asked_s > LISTED_S:
            return None
        listed = (
            state
            for state in list(states)[:MOST_LISTED]
            if state.steps is None
            and not (state.error or state.gone or state.place.error)
            and state.place.size_bytes <= MOST_LISTED_BYTES
        )
        return next(listed, None)

    def _load(self, state: _State) -> None:
        begun_s = time.monotonic()
        report: Report | None = None
        error: str | None = None
        live = state.live
        try:
            report, live = state.shown.load()
        except ShardtollError as problem:
            error = first_line(problem)
        except Exception as problem:  # noqa: BLE001 - one run must not end the thread that reads all others
            error = f"the analysis failed ({type(problem).__name__}: {first_line(problem)})"
        with self._changed:
            state.error = error
            if report is not None:
                state.report, state.live, state.version = report, live, state.tried
                state.steps = pc.count_distinct(report.tables["steps"].column("step")).as_py()
                state.dearest = next((finding.title for finding in report.findings), None)
                state.world_size, state.fabric = report.run.world_size, report.fabric.name
            state.ended_s = time.monotonic()
            state.took_s = state.ended_s - begun_s
            self._forget()
            self._changed.notify_all()

    def _forget(self) -> None:
        """Let go of the reports that were asked for longest ago."""
        kept = [state for state in self._list.states.values() if state.report is not None]
        for state in sorted(kept, key=lambda state: state.asked_s)[: max(0, len(kept) - MOST_REPORTS)]:
            state.report, state.version, state.tried, state.seen = None, NONE, NONE, NONE
            state.looked_s = -1e9
            state.shown = shown(state.place.item, self._options, self._analyze)


def _entry(state: _State) -> RunEntry:
    place = state.place
    sized = place.world_size if state.world_size is None else state.world_size
    return RunEntry(
        place.name,
        place.item.paths[0],
        place.kind,
        place.modified_ns,
        sized,
        state.steps,
        state.dearest,
        state.gone or state.error or place.error,
        state.fabric,
    )


def _told(state: _State) -> bool:
    """Whether anything is known about the run except that it is being read."""
    return (state.report or state.error or state.gone) is not None


def make_source(path: str, fabric: str | None = None, options: TraceOptions | None = None) -> Served:
    """Return what `shardtoll serve PATH` shows: a run folder, a folder of runs, a report.json or traces.

    `fabric` is a known name or a TOML file. Raises UsageError if there is nothing to show, FabricError for
    the fabric.
    """
    chosen = named_fabric(fabric)
    return Served(path, partial(analyze, fabric=chosen), options)
