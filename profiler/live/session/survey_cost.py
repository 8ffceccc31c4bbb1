"""Cost of surveys for a job, and how seldom they have to be for that to stay little.

A survey costs a fixed time for each operator. On a CPU it may be a tenth of a step. On an accelerator that
does the work of an operator in microseconds, a surveyed step takes ten times as long as a watched one. One
step in a hundred then costs a tenth of the training.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

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
