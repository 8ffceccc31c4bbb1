"""Which steps are surveyed and which are only watched.

The default surveys step 0, so that a short run is whole and every later step has something to be compared
with, step 2, the first after the warm-up of most programs, and then one in so many. It surveys further steps
when it must: while sequences are new that C++ has a part in, as with DDP, which rebuilds its buckets in the
first steps; and after a step that repeats none of the surveyed ones, first at once, then where such steps
seem to come back, and less and less often where that teaches nothing.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Level: TypeAlias = Literal["schedule", "survey", "watch"]
LEVELS: Final[tuple[Level, ...]] = ("schedule", "survey", "watch")

SURVEY_EVERY: Final = 100
_FIRST: Final = 2
_WARM_UP: Final = 8
"""So many steps in a row are surveyed while each is a new sequence of C++'s."""


class Schedule:
    """Decides step by step, from what earlier steps were like."""

    def __init__(self, level: Level, every: int = SURVEY_EVERY) -> None:
        """`every`: one step in so many is surveyed."""
        self._level = level
        self._every = every
        self._again = False
        self._new = 0
        """Surveyed steps in a row that were new and had a part of C++'s."""
        self._extra: int | None = None
        """A step at which one like those that differ is expected."""
        self._differed: int | None = None
        self._not_before = 0
        self._gap = 1

    @property
    def watches(self) -> bool:
        """Whether any step may be watched."""
        return self._level != "survey"

    def wants_survey(self, step: int) -> bool:
        """Return whether to survey the step that begins now."""
        if self._level != "schedule":
            return self._level == "survey"
        again, self._again = self._again, False
        due = step == 0 or (step >= _FIRST and (step - _FIRST) % self._every == 0)
        return due or again or step == self._extra

    def surveyed(self, *, new: bool, all_seen: bool) -> None:
        """Note a surveyed step: whether its sequence was new, and whether Python issued all of it."""
        self._new = self._new + 1 if new and not all_seen else 0
        if 0 < self._new <= _WARM_UP:
            self._again = True

    def watched(self, step: int, *, known: bool) -> None:
        """Note a watched step: whether it repeats a surveyed one."""
        if known:
            return
        before, self._differed = self._differed, step
        if step >= self._not_before:
            self._again = True
            if before is not None:
                self._extra = step + (step - before)
            self._not_before = step + self._gap
            self._gap = min(2 * self._gap, self._every)
