"""An address of the server: which run, which view, and which parts are filtered, picked and zoomed.

The address is the only place where a reader's choices are kept, so that links and the browser's back
button restore them. Addresses come from anywhere: what cannot be meant is left out, not an error.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlencode

from shardtoll.dashboards.app.filters import Filter
from shardtoll.dashboards.page.views.views import VIEWS
from shardtoll.ledger import Finding

QUERY_MOST: Final = 20_000
"""Characters of a query that are looked at."""

_AXIS: Final = re.compile(r"[xy]\d?")

Zoom = tuple[tuple[str, float, float], ...]
"""(axis, from, to) of each axis that is zoomed, as Plotly has them: x, y, x2."""


@dataclass(frozen=True, slots=True)
class ReaderPlace:
    """The place of a reader."""

    run: str | None = None
    """A name of `Source.runs`; None: the list, or the only run."""
    view: str = VIEWS[0].name
    finding: str | None = None
    """Key of the finding whose marks are lit (`keys`)."""
    zoom: Zoom = ()
    """Zoom of this view."""
    only: Filter = field(default_factory=Filter)

    @classmethod
    def from_query(cls, query: str) -> ReaderPlace:
        """Return what a query says, as `?run=a&view=timeline`."""
        query = query.lstrip("?")[:QUERY_MOST]
        said = dict(parse_qsl(query, max_num_fields=None))
        view = said.get("view")
        return cls(
            run=said.get("run"),
            view=view if view in {each.name for each in VIEWS} else VIEWS[0].name,
            finding=said.get("finding"),
            zoom=_zoom(said.get("zoom", "")),
            only=Filter.from_query(query),
        )

    def to_query(self) -> str:
        """Return it with a leading `?`; the first view and no choices give an empty text."""
        parts = []
        if self.run is not None:
            parts.append(("run", self.run))
        if self.view != VIEWS[0].name:
            parts.append(("view", self.view))
        if self.finding is not None:
            parts.append(("finding", self.finding))
        if self.zoom:
            parts.append(("zoom", ",".join(f"{axis}:{low:.9g}:{high:.9g}" for axis, low, high in self.zoom)))
        # A lone surrogate, as file names of another encoding have, must not end the request.
        both = [urlencode(parts, errors="replace"), self.only.to_query().lstrip("?")]
        query = "&".join(part for part in both if part)
        return f"?{query}" if query else ""


def _zoom(text: str) -> Zoom:
    ends_of = {}
    for part in text.split(",")[:6]:
        axis, _, ends = part.partition(":")
        low, _, high = ends.partition(":")
        try:
            pair = float(low), float(high)
        except ValueError:
            continue
        if _AXIS.fullmatch(axis) and all(map(math.isfinite, pair)) and pair[0] != pair[1]:
            ends_of[axis] = pair
    return tuple((axis, *pair) for axis, pair in sorted(ends_of.items()))


def keys(findings: Sequence[Finding]) -> dict[str, int]:
    """Return a key for each finding -> its number on the bill.

    Numbers change while a run grows; kind and place, of which the key is made, do not. It holds no
    characters but those of kinds, and may stand anywhere.
    """
    numbers: dict[str, int] = {}
    for number, finding in enumerate(findings, start=1):
        where = repr(finding.where).encode("utf-8", "backslashreplace")
        base = f"{finding.kind}-{hashlib.sha256(where).hexdigest()[:8]}"
        key, again = base, 2
        while key in numbers:
            key, again = f"{base}-{again}", again + 1
        numbers[key] = number
    return numbers
