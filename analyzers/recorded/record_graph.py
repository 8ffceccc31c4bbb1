"""Which graph of a run to replay: from events if traces have them, else from collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.recorded.from_events import from_events
from shardtoll.analyzers.recorded.from_points import from_points
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.event_order import DeadlockError
from shardtoll.analyzers.shared.memo import once

EVENTS_IN_A_REPORT: Final = 40_000
POINTS_IN_A_REPORT: Final = 12_000
"""Nodes that a report replays at most, whole steps: a few seconds. `whatif` replays all that is on record."""


@once
def short_record(context: Context) -> Recorded | None:
    """Return the graph that a report can afford, of the first steps. None if nothing can be replayed, or a
    step alone is too large."""
    return _made(from_events, context, EVENTS_IN_A_REPORT) or _made(from_points, context, POINTS_IN_A_REPORT)


def recorded_graph(context: Context) -> Recorded | None:
    """Return the graph of all recorded steps that can be replayed; None if there is none."""
    return _made(from_events, context, None) or _made(from_points, context, None)


def _made(
    make: Callable[[Context, int | None], Recorded | None], context: Context, most: int | None
) -> Recorded | None:
    """Return what `make` does; None if nodes wait for each other in a circle, as in damaged records."""
    try:
        return make(context, most)
    except DeadlockError:
        return None
