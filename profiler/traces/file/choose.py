"""Which events of a chunk are kept, and their times in nanoseconds."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import Any, Final

import numpy as np
from msgspec import Struct, field

from shardtoll.profiler.traces.file.columns import (
    DURATION_LIMIT_US,
    EXACT_BELOW_US,
    START_LIMIT_US,
    exact_nanoseconds,
    nanoseconds,
)
from shardtoll.profiler.traces.file.interned import telling_ops, working_calls
from shardtoll.profiler.traces.file.trace_columns import COPY, I64, KERNEL, SET

DEVICE_KINDS: Final = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": SET,
    "mtia_ccp_events": KERNEL,
    "Kernel": KERNEL,
    "Memcpy": COPY,
    "Memset": SET,
}
"""Categories of device work; the capitals are those of torch before 1.12."""

MTIA: Final = "mtia_ccp_events"
"""Work of MTIA's command processors; waiting for an event and recording one is no work."""

CALLS: Final = frozenset(
    (
        "cuda_runtime",
        "cuda_driver",
        "hip_runtime",
        "xpu_runtime",
        "xpu_driver",
        "mtia_runtime",
        "privateuse1_runtime",
        "privateuse1_driver",
        "Runtime",
    )
)
OPS: Final = frozenset(("cpu_op", "Operator"))
ANNOTATIONS: Final = frozenset(("user_annotation", "cpu_user_annotation"))
FRAMES: Final = frozenset(("python_function",))
_FLOWS: Final = frozenset(("ac2g", "fwdbwd", "async_cpu_to_gpu", "async_gpu", "gpu_user_annotation"))
_STEP: Final = "ProfilerStep"
_WHOLE: Final = {"X"}
_ASYNC: Final = frozenset(("b", "e"))
"""Phases of events that are whole, and of the begins and ends of async spans."""
_MOST_CATEGORIES: Final = 64


class Rows(Struct, frozen=True):
    """Events of one category, to be kept."""

    category: str
    events: list[Any]
    start_ns: I64
    end_ns: I64


class Chooser(Struct):
    """Sorts events by category and drops what says nothing; remembers spans that are still open."""

    has_device: bool
    bad: int = 0
    """Events whose times are no usable numbers."""
    categories: set[str | None] = field(default_factory=set)
    """Categories of all events, kept or not; no more than some dozen are remembered."""
    operators: list[Any] = field(default_factory=list)
    """All complete operators of the last chunk, kept or not."""
    open: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """Begun async spans by (category, id, name, process)."""
    _telling: dict[str, bool] = field(default_factory=telling_ops)
    _working: dict[str, bool] = field(default_factory=working_calls)

    def choose(self, events: list[Any], *, exact: bool) -> list[Rows] | None:
        """Return the kept rows; None if times need more digits than these events have."""
        buckets: defaultdict[str | None, list[Any]] = defaultdict(list)
        for event in events:
            buckets[event.cat].append(event)
        self._marks(buckets)
        if len(self.categories) < _MOST_CATEGORIES:
            self.categories.update(islice(buckets, _MOST_CATEGORIES))
        self.has_device = self.has_device or not buckets.keys().isdisjoint(DEVICE_KINDS)
        self.operators = []
        picked: list[tuple[str, list[Any]]] = []
        spans: list[Any] = []
        for category, listed in buckets.items():
            if category is None or category in _FLOWS:
                continue
            kinds = {event.ph for event in listed}
            whole = listed if kinds == _WHOLE else [event for event in listed if event.ph == "X"]
            if category in OPS:
                self.operators += whole
            if category not in CALLS and category not in DEVICE_KINDS and not kinds.isdisjoint(_ASYNC):
                spans += [event for event in listed if event.ph in _ASYNC]
            chosen = self._chosen(category, whole)
            if chosen:
                picked.append((category, chosen))
        if not exact and any(is_inexact(event) for event in spans):
            return None
        kept = None if exact else _timed(picked)
        if kept is None:
            kept = self._timed_apart(picked, exact=exact)
        if kept is not None and spans:
            kept.append(self._paired(spans))
        return None if kept is None else [rows for rows in kept if rows.events]

    def _timed_apart(self, picked: list[tuple[str, list[Any]]], *, exact: bool) -> list[Rows] | None:
        """Return the rows, category by category; events of bad times are counted and left out.

        None if times need more digits than these events have.
        """
        kept: list[Rows] = []
        bad = 0
        for category, chosen in picked:
            times = None if exact else common_times(chosen)
            if times is None:
                if not exact and any(is_inexact(event) for event in chosen):
                    return None
                places, start_ns, end_ns = usable_times(chosen)
                bad += len(chosen) - len(places)
                kept.append(Rows(category, [chosen[place] for place in places], start_ns, end_ns))
            elif times[2]:
                kept.append(Rows(category, chosen, times[0], times[1]))
            else:
                return None
        self.bad += bad
        return kept

    @staticmethod
    def _marks(buckets: dict[str | None, list[Any]]) -> None:
        """Move steps that an old torch recorded as operators to where newer ones record them."""
        for category in OPS & buckets.keys():
            listed = buckets[category]
            names = {name for name in {event.name for event in listed} if name and name.startswith(_STEP)}
            if names:
                marks = [event for event in listed if event.name in names]
                buckets[category] = [event for event in listed if event.name not in names]
                buckets.setdefault("user_annotation", []).extend(marks)

    def _chosen(self, category: str, events: list[Any]) -> list[Any]:
        """Return the complete events of a category that are kept."""
        if category in CALLS:
            return _named(events, self._working)
        if category in OPS and self.has_device:
            return _named(events, self._telling)
        if category == MTIA:
            return [event for event in events if not (event.name or "").startswith("event_")]
        if category in DEVICE_KINDS or category in OPS or category in ANNOTATIONS or category in FRAMES:
            return events
        return []

    def _paired(self, spans: list[Any]) -> Rows:
        """Join begins and ends of async spans; an end without a begin is dropped."""
        begun: list[Any] = []
        start, end = [], []
        for event in spans:
            key = (event.cat, event.id, event.name, event.pid)
            if event.ph == "b":
                self.open[key] = event
                continue
            first = self.open.pop(key, None)
            if first is None:
                continue
            times = exact_nanoseconds(first.ts, START_LIMIT_US), exact_nanoseconds(event.ts, START_LIMIT_US)
            if times[0] is None or times[1] is None or times[1] < times[0]:
                self.bad += 1
                continue
            begun.append(first)
            start.append(times[0])
            end.append(times[1])
        return Rows("user_annotation", begun, np.array(start, np.int64), np.array(end, np.int64))


def _timed(picked: list[tuple[str, list[Any]]]) -> list[Rows] | None:
    """Return the rows if all times of a chunk are good, exact numbers: they are then converted together."""
    times = common_times([event for _, chosen in picked for event in chosen]) if picked else None
    if times is None or not times[2]:
        return None
    kept: list[Rows] = []
    first = 0
    for category, chosen in picked:
        last = first + len(chosen)
        kept.append(Rows(category, chosen, times[0][first:last], times[1][first:last]))
        first = last
    return kept


def _named(events: list[Any], picked: dict[str, bool]) -> list[Any]:
    """Return the events whose names are picked: a chunk has many events of few names."""
    names = {name for name in {event.name for event in events} if picked[name or ""]}
    return [event for event in events if event.name in names] if names else []


def is_inexact(event: Any) -> bool:
    """Whether a time lost digits when it became a float."""
    return any(
        isinstance(value, float) and EXACT_BELOW_US <= abs(value) < START_LIMIT_US
        for value in (event.ts, event.dur)
    )


def common_times(events: list[Any]) -> tuple[I64, I64, bool] | None:
    """Return starts, ends and whether they are exact; None if one event is bad."""
    start = nanoseconds([event.ts for event in events], START_LIMIT_US)
    duration = nanoseconds([event.dur for event in events], DURATION_LIMIT_US)
    if start is None or duration is None or int(duration[0].min()) < 0:
        return None
    return start[0], start[0] + duration[0], start[1] and duration[1]


def usable_times(events: list[Any]) -> tuple[list[int], I64, I64]:
    """Return positions, starts and ends of the events with usable times, in the exact and slow way."""
    places: list[int] = []
    start, end = [], []
    for place, event in enumerate(events):
        begun = exact_nanoseconds(event.ts, START_LIMIT_US)
        lasted = exact_nanoseconds(event.dur, DURATION_LIMIT_US)
        if begun is not None and lasted is not None and lasted >= 0:
            places.append(place)
            start.append(begun)
            end.append(begun + lasted)
    return places, np.array(start, np.int64), np.array(end, np.int64)
