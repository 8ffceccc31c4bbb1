"""What an address of the server says: which run, which view, what is filtered, picked and zoomed.

The address is the only place where a reader's choices are kept, so that links and the browser's back
button restore them. Addresses come from anywhere: what cannot be meant is left out, not an error.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from shardtoll.dashboards import summary
from shardtoll.dashboards.filters import Filter
from shardtoll.dashboards.views import VIEWS
from shardtoll.ledger import Finding

QUERY_MOST: Final = 20_000
"""Characters of a query that are looked at."""

_AXIS: Final = re.compile(r"[xy]\d?")
_RANGE: Final = re.compile(r"([xy])axis(\d?)\.(range\[([01])\]|range|autorange)")

Zoom = tuple[tuple[str, float, float], ...]
"""(axis, from, to) of each axis that is zoomed, as Plotly has them: x, y, x2."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader is."""

    run: str | None = None
    """A name of `Source.runs`; None: the list, or the only run."""
    view: str = VIEWS[0].name
    finding: str | None = None
    """Key of the finding whose marks are lit (`keys`)."""
    zoom: Zoom = ()
    """Of this view."""
    only: Filter = field(default_factory=Filter)

    @classmethod
    def from_query(cls, query: str) -> Place:
        """Return what a query says, as `?run=a&view=timeline`."""
        query = query.lstrip("?")[:QUERY_MOST]
        said = dict(parse_qsl(query, max_num_fields=None))
        view = said.get("view")
        return cls(
            run=said.get("run"),
            view=view if view in {one.name for one in VIEWS} else VIEWS[0].name,
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
    found = {}
    for part in text.split(",")[:6]:
        axis, _, ends = part.partition(":")
        low, _, high = ends.partition(":")
        try:
            pair = float(low), float(high)
        except ValueError:
            continue
        if _AXIS.fullmatch(axis) and all(map(math.isfinite, pair)) and pair[0] != pair[1]:
            found[axis] = pair
    return tuple((axis, *pair) for axis, pair in sorted(found.items()))


def zoomed(zoom: Zoom, moved: dict[str, Any] | None) -> Zoom:
    """Return the zoom after what Plotly tells of a change of the layout; axes it does not name stay."""
    ranges: dict[str, list[Any]] = {axis: [low, high] for axis, low, high in zoom}
    for name, value in (moved or {}).items():
        match = _RANGE.fullmatch(name)
        if match is None:
            continue
        axis = match.group(1) + match.group(2)
        if match.group(3) == "autorange":
            ranges.pop(axis, None)
        elif match.group(3) == "range":
            ranges[axis] = list(value) if isinstance(value, list) else []
        else:
            ranges.setdefault(axis, [None, None])[int(match.group(4))] = value
    whole = {axis: pair for axis, pair in ranges.items() if len(pair) == 2 and None not in pair}
    # Through text: what a browser sends is no more trusted than a link.
    return _zoom(",".join(f"{axis}:{low}:{high}" for axis, (low, high) in whole.items()))


def keys(findings: Sequence[Finding]) -> dict[str, int]:
    """Return a key for each finding -> its number on the bill.

    Numbers change while a run grows; kind and place, of which the key is made, do not. It holds no
    characters but those of kinds, and may stand anywhere.
    """
    found: dict[str, int] = {}
    for number, finding in summary.by_severity(findings):
        where = repr(finding.where).encode("utf-8", "backslashreplace")
        base = f"{finding.kind}-{hashlib.sha256(where).hexdigest()[:8]}"
        key, again = base, 2
        while key in found:
            key, again = f"{base}-{again}", again + 1
        found[key] = number
    return found
