"""A reader's actions since the page's last answer, whatever event brought the question.

A browser drops the answer to an older question if a newer one of the same callback is asked. The newer one
knows only its own cause. A bill that comes in would end a click, or leave a field empty while a filter is in
force. So the page keeps what the last answer had heard, and each question is compared with it. The
differences are the reader's actions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from shardtoll.dashboards.app.filters import Filter, parse_ranks, ranges
from shardtoll.dashboards.app.state import ReaderPlace

CHOICES: Final = ("groups", "modules", "phases", "kinds")
"""Filters that are lists to choose from; ranks are typed, as a thousand of them may be."""
FIELDS: Final = ("ranks", *CHOICES)


FIELD: Final = "filter-"
"""Prefix of a field's id: views of the same name have ids of their own."""


@dataclass(frozen=True, slots=True)
class Controls:
    """State of the page's controls."""

    fields: Mapping[str, Any]
    """The `FIELDS`."""
    clear: int = 0
    """Clicks since the page was loaded."""

    def heard(self, place: ReaderPlace) -> dict[str, Any]:
        """Return what the page keeps of this with its answer, which leaves the reader at `place`."""
        return {"run": place.run, "fields": values(place.only), "clear": self.clear}


def values(only: Filter) -> dict[str, Any]:
    """Return what each of the `FIELDS` shows while this filter is in force."""
    return {"ranks": ranges(only.ranks), **{name: list(getattr(only, name)) for name in CHOICES}}


def chosen(place: ReaderPlace, now: Controls, heard: object, causes: Collection[str] = ()) -> ReaderPlace:
    """Return the place with the filters the reader now wants.

    `causes` are the names of the controls that brought the question; they only show which came last.
    """
    before = heard if isinstance(heard, dict) else {}
    if before and before.get("run") != place.run:
        # The actions were on another run.
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
    return place


def _field(name: str, value: Any) -> tuple[Any, ...]:
    """Return a field's part of a filter; through text, as from a link."""
    if name == "ranks":
        return parse_ranks(str(value or ""))[0]
    return tuple(sorted({str(name) for name in value or ()}))
