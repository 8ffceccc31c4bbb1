"""The time axis of the timeline: stretches with a step or a collective, and folded gaps between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards.facts.row_codes import Ints
from shardtoll.dashboards.page.html.figure import Columns, ms
from shardtoll.ledger import Report
from shardtoll.ledger.words import human

LEAST_GAP: Final = 0.5
"""A gap is folded if it is longer than this part of the median step."""
DRAWN_GAP: Final = 0.1
"""A folded gap is drawn as long as this part of the median step."""
STRIPES: Final = 200
"""Folded gaps that are drawn as stripes at most; with more, the axis alone shows them."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Stretches of the run's clock, ascending, with folded gaps between them; empty if no time is known."""

    starts_ns: Ints
    ends_ns: Ints
    drawn_ns: Ints
    """Begin of each stretch on the axis; for the first one the begin of its clock."""

    def stretch(self, times_ns: Ints) -> Ints:
        """Return the stretch of each time."""
        found: Ints = np.maximum(np.searchsorted(self.starts_ns, times_ns, side="right") - 1, 0)
        return found

    def drawn(self, times_ns: Ints) -> Ints:
        """Return where times that lie in a stretch are on the axis."""
        if len(self.starts_ns) < 2:
            return times_ns
        at = self.stretch(times_ns)
        places: Ints = self.drawn_ns[at] + (times_ns - self.starts_ns[at])
        return places

    def columns(self) -> dict[str, Columns]:
        """Return the stretches in ms, by which the page's script writes the run's clock at the axis."""
        if len(self.starts_ns) < 2:
            return {}
        listed = {"from": self.starts_ns, "to": self.ends_ns, "at": self.drawn_ns}
        return {"clock": {name: [ms(time) for time in times.tolist()] for name, times in listed.items()}}

    def stripes(self) -> list[dict[str, Any]]:
        """Return a grey stripe over all rows for each folded gap."""
        if not 1 < len(self.starts_ns) <= STRIPES + 1:
            return []
        ends = (self.drawn_ns + (self.ends_ns - self.starts_ns))[:-1]
        fill = {"fillcolor": "#8a8a8a", "opacity": 0.35, "line": {"width": 0}, "layer": "below"}
        return [
            {"type": "rect", "yref": "paper", "x0": ms(end), "x1": ms(start), "y0": 0, "y1": 1, **fill}
            for end, start in zip(ends.tolist(), self.drawn_ns[1:].tolist(), strict=True)
        ]

    def notes(self) -> list[str]:
        """Return how many gaps are folded, and how long they are."""
        if len(self.starts_ns) < 2:
            return []
        gaps = self.starts_ns[1:] - self.ends_ns[:-1]
        long, clock = human.duration(int(gaps.sum())), "The numbers at the axis are the run's clock."
        if len(gaps) == 1:
            return [f"1 gap between steps, {long}, is folded to a grey stripe. {clock}"]
        return [f"{len(gaps):,} gaps between steps, {long} in sum, are folded to grey stripes. {clock}"]


def clock(report: Report) -> Clock:
    """Return the clock of a report; one stretch if no step's duration is known."""
    steps = report.tables["steps"]
    begin, end = _spans(steps)
    begins, ends = (
        np.concatenate(pair) for pair in zip((begin, end), _spans(report.tables["collectives"]), strict=True)
    )
    if not len(begins):
        return Clock(begins, ends, begins)
    order = np.argsort(begins, kind="stable")
    begins, reached = begins[order], np.maximum.accumulate(ends[order])
    gaps = begins[1:] - reached[:-1]
    step = int(np.median(end - begin)) if len(begin) else None
    folded = np.flatnonzero(gaps > step * LEAST_GAP) if step else np.empty(0, dtype=np.int64)
    starts = np.concatenate((begins[:1], begins[folded + 1]))
    stops = np.concatenate((reached[folded], reached[-1:]))
    kept = int((step or 0) * DRAWN_GAP)
    before = np.concatenate(([0], np.cumsum(stops[:-1] - starts[:-1] + kept)))
    return Clock(starts, stops, starts[0] + before)


def _spans(table: pa.Table) -> tuple[Ints, Ints]:
    """Return beginnings and ends of the rows that have both."""
    table = table.select(["start_ns", "duration_ns"]).drop_null()
    start: Ints = table["start_ns"].to_numpy().astype(np.int64)
    end: Ints = pc.add(table["start_ns"], table["duration_ns"]).to_numpy().astype(np.int64)
    return start, end
