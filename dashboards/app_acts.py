"""What a reader did since the page's last answer, whatever event brought the question.

A browser drops the answer to an older question where a newer one of the same callback is asked, and tells
the newer one only its own cause: a figure that is drawn or a bill that comes in would end a click, or leave
a field empty while a filter is in force. So the page keeps what the last answer had heard, each question is
compared with it, and what differs is what the reader did.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from shardtoll.dashboards.app_state import Place, zoomed
from shardtoll.dashboards.filters import Filter, parse_ranks, ranges

CHOICES: Final = ("groups", "modules", "phases", "kinds")
"""Filters that are lists to choose from; ranks are typed, as a thousand of them may be."""
FIELDS: Final = ("ranks", *CHOICES)


@dataclass(frozen=True, slots=True)
class Controls:
    """What the page's controls say."""

    fields: Mapping[str, Any]
    """The `FIELDS`."""
    clear: int = 0
    """Clicks since the page was loaded, as of `unzoom`."""
    unzoom: int = 0
    picks: Mapping[str, int] | None = None
    """Key of a finding -> clicks since its line was drawn."""
    moved: Any = None
    """What Plotly told last of a change of the figure's layout."""
    clicked: Any = None
    """The mark that was clicked last, as Plotly tells it."""

    def heard(self, place: Place) -> dict[str, Any]:
        """Return what the page keeps of this with its answer, which leaves the reader at `place`."""
        return {
            "run": place.run,
            "view": place.view,
            "fields": values(place.only),
            "clear": self.clear,
            "unzoom": self.unzoom,
            "picks": {key: count for key, count in (self.picks or {}).items() if count},
            "moved": self.moved,
            "clicked": self.clicked,
        }


def values(only: Filter) -> dict[str, Any]:
    """Return what each of the `FIELDS` shows where this filter is in force."""
    return {"ranks": ranges(only.ranks), **{name: list(getattr(only, name)) for name in CHOICES}}


def chosen(place: Place, now: Controls, heard: object, causes: Collection[str] = ()) -> Place:
    """Return the place with the filters and the zoom the reader now wants.

    `causes` are the names of the controls that brought the question; they only tell which came last.
    """
    before = heard if isinstance(heard, dict) else {}
    if before and before.get("run") != place.run:
        # What was done to another run.
        return place
    shown = before.get("fields")
    shown = shown if isinstance(shown, dict) else values(Filter())
    done = {name: _field(name, now.fields.get(name)) for name in FIELDS}
    done = {name: value for name, value in done.items() if value != _field(name, shown.get(name))}
    if now.clear != before.get("clear", 0):
        # A field that was filled in after the click stays.
        late = () if "clear" in causes else causes
        place = replace(place, only=Filter())
        done = {name: value for name, value in done.items() if name in late}
    if done:
        place = replace(place, only=replace(place.only, **done, refused=()))
    if moves_here(place, before) and now.moved != before.get("moved"):
        place = replace(place, zoom=zoomed(place.zoom, now.moved if isinstance(now.moved, dict) else None))
    if now.unzoom != before.get("unzoom", 0):
        place = replace(place, zoom=())
    return place


def moves_here(place: Place, heard: object) -> bool:
    """Return whether what was done to the figure was done to the one of this place."""
    before = heard if isinstance(heard, dict) else {}
    return not before or (before.get("run"), before.get("view")) == (place.run, place.view)


def picked(now: Controls, place: Place, heard: object, causes: Collection[str] = ()) -> list[str]:
    """Return the keys of the findings that were clicked an odd number of times since.

    A line that is drawn anew counts from 0, so that its first click may look as one that was heard.
    """
    before = heard if isinstance(heard, dict) else {}
    if before and before.get("run") != place.run:
        return []
    counts = before.get("picks")
    counts = counts if isinstance(counts, dict) else {}
    found = []
    for key, count in (now.picks or {}).items():
        last = counts.get(key, 0)
        again = count if count != last or key in causes else 0
        if (count - last if count > last else again) % 2:
            found.append(key)
    return found


def _field(name: str, value: Any) -> tuple[Any, ...]:
    """Return a field's part of a filter; through text, as from a link."""
    if name == "ranks":
        return parse_ranks(str(value or ""))[0]
    return tuple(sorted({str(one) for one in value or ()}))
