"""Which steps are surveyed, which are only watched, and in which of them values are checked.

The default surveys step 0, so that a short run is whole and every later step has something to be compared
with. Then come step 2, the first after the warm-up of most programs, and then one in so many. It surveys
further steps when it must. One reason is new sequences with collectives of C++, as with DDP, which rebuilds
its buckets in the first steps. It also does so after a step that repeats none of the surveyed ones. It does
so at once the first time, then if such steps seem to come back. If that teaches nothing, as sequences change
in every step, it soon hardly ever does. All further steps together are at most a few and one in twenty; what
stays watched is attributed by its own stack. If surveyed steps take much longer than watched ones, fewer
steps are always due.

Cost of surveys for a job, and how seldom they have to be for that to stay little.

A survey costs a fixed time for each operator. On a CPU it may be a tenth of a step. On an accelerator that
does the work of an operator in microseconds, a surveyed step takes ten times as long as a watched one. One
step in a hundred then costs a tenth of the training.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from torch import nn

from shardtoll.ledger import UsageError

Level: TypeAlias = Literal["schedule", "survey", "watch"]

LEVELS: Final[tuple[Level, ...]] = ("schedule", "survey", "watch")

SURVEY_EVERY: Final = 100
"""The usual spacing, which grows if surveys would add too much. Any other one is kept."""

_FIRST: Final = 2

_WARM_UP: Final = 8
"""So many steps in a row are surveyed while each is a new sequence of C++'s."""

_ONE_IN: Final = 20
"""One step in so many may be surveyed beyond those of the warm-up and the ones always due."""

_SELDOM: Final = 4
"""Each time that steps differ again the pause before the next look at them is so many times as long."""

MOST_ADDED: Final = 0.01
"""Share of a job's time that surveys which are due may add."""

_FACTOR: Final = 4
"""Spacings are the first one times powers of it. Thus a step that is due with a longer spacing is due for all
other ranks too, whatever each has measured."""

_MOST_POWER: Final = 5

_WATCHED: Final = 32
"""Watched steps that are remembered, the last ones."""

_SURVEYED: Final = 4

_LEAST: Final = 3
"""Watched steps from which their median counts."""


class Schedule:
    """Decides step by step, from what earlier steps were like."""

    def __init__(self, level: Level, every: int = SURVEY_EVERY) -> None:
        """`every`: one step in so many is surveyed; the usual number is what they are at least apart."""
        self._level = level
        self._every = every
        self._cost = SurveyCost() if every == SURVEY_EVERY else None
        self._again = False
        self._new = 0
        """Surveyed steps in a row that were new and had a part of C++'s."""
        self._extra: int | None = None
        """A step at which one like those that differ is expected."""
        self._differed: int | None = None
        self._not_before = 0
        self._gap = 1
        self._extras = 0
        """Steps surveyed that were not due."""

    @property
    def watches(self) -> bool:
        """Whether any step may be watched."""
        return self._level != "survey"

    @property
    def surveys(self) -> bool:
        """Whether any step may be surveyed."""
        return self._level != "watch"

    def wants_survey(self, step: int) -> bool:
        """Return whether to survey the step that is about to begin."""
        if self._level != "schedule":
            return self._level == "survey"
        again, self._again = self._again, False
        if step == 0 or (step >= _FIRST and (step - _FIRST) % self._every == 0):
            spacing = self._every if self._cost is None else self._cost.spacing(self._every)
            return step <= _FIRST or (step - _FIRST) % spacing == 0
        extra = (again or step == self._extra) and self._extras < _WARM_UP + step // _ONE_IN
        self._extras += extra
        return extra

    def begins(self, step: int, *, surveyed: bool, now_ns: int) -> None:
        """Note that a step begins, for whatever reason it is surveyed; `now_ns` is when, by one clock."""
        if self._cost is not None:
            self._cost.begins(step, surveyed=surveyed, now_ns=now_ns)

    def surveyed(self, *, new: bool, all_seen: bool) -> None:
        """Note a surveyed step: whether its sequence was new, and whether Python issued all of it."""
        self._new = self._new + 1 if new and not all_seen else 0
        if 0 < self._new <= _WARM_UP:
            self._again = True

    def watched(self, step: int, *, repeats: bool) -> None:
        """Note a watched step: whether it repeats a surveyed one."""
        if repeats:
            return
        before, self._differed = self._differed, step
        if step >= self._not_before:
            self._again = True
            if before is not None:
                self._extra = step + (step - before)
            self._not_before = step + self._gap
            self._gap = min(_SELDOM * self._gap, self._every)


CHECKS: Final = ("gradients", "replicas", "data")


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks that were asked for."""

    names: frozenset[str]
    every: int
    """One in so many steps is looked at, from the first on."""

    @staticmethod
    def wanted(names: Sequence[str], every: int, model: nn.Module | None) -> Checks | None:
        """Return the checks of that name; None if none is asked for.

        Raises UsageError for a name that is none, fewer than one step, or no model to check.
        """
        if isinstance(names, str):
            names = (names,)
        unknown = [name for name in names if name not in CHECKS]
        if unknown:
            raise UsageError(f"checks has {unknown[0]!r}", f"choose among {', '.join(CHECKS)}")
        if every < 1:
            raise UsageError(f"check_every is {every}", "check at least every step: give 1 or more")
        if names and model is None:
            raise UsageError(f"checks={list(names)} without a model", "give it: audit(model, checks=...)")
        return Checks(frozenset(names), every) if names else None

    def due(self, step: int) -> bool:
        """Whether the step of that number is looked at."""
        return step % self.every == 0


class SurveyCost:
    """Measures steps from the beginning of one to that of the next, which holds all that a survey adds."""

    def __init__(self) -> None:
        self._watched: deque[int] = deque(maxlen=_WATCHED)
        self._surveyed: deque[int] = deque(maxlen=_SURVEYED)
        self._last: tuple[int, bool, int] | None = None
        """Number of the step that began last, whether it is surveyed, and when it began."""

    def begins(self, step: int, *, surveyed: bool, now_ns: int) -> None:
        """Note that a step begins, and with it how long the one before took."""
        if self._last is not None:
            before, was_surveyed, since_ns = self._last
            # The first step sets things up.
            if before and before + 1 == step:
                (self._surveyed if was_surveyed else self._watched).append(now_ns - since_ns)
        self._last = step, surveyed, now_ns

    def spacing(self, every: int) -> int:
        """Return one in how many steps may be surveyed: `every`, or more for `MOST_ADDED` to hold."""
        if not self._surveyed or len(self._watched) < _LEAST:
            return every
        usual_ns = max(1.0, statistics.median(self._watched))
        # The lower median: what else happened to fall on a surveyed step, as a checkpoint, is no cost of it.
        added = (statistics.median_low(self._surveyed) - usual_ns) / usual_ns
        spacing = every
        while spacing * MOST_ADDED < added and spacing < every * _FACTOR**_MOST_POWER:
            spacing *= _FACTOR
        return spacing
