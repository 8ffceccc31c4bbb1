"""A thread that keeps provisional rows of watched steps while the step after them takes long.

Rows are made where a region ends, on the training thread. While that stands in a region that lasts, a kill
would take what waits with it. This thread then writes the same rows, without the transport's times: those
are read where the recording of them ends. Nothing in a step waits for this thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from shardtoll.profiler.live.capture.rows import Ended
from shardtoll.profiler.live.capture.watch import Watch
from shardtoll.profiler.live.flight.background import Background

_LOOK_S: Final = 0.1
"""From one look to the next while nothing waits: what comes meanwhile has no need to be kept before."""
_SHORTEST_S: Final = 0.015
"""A look takes some tens of microseconds."""
log = logging.getLogger("shardtoll")


class Provisional(Background):
    """Watches what waits for its rows; `start` and `stop` it once."""

    def __init__(
        self,
        watch: Watch,
        keep: Callable[[Sequence[Ended]], None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`keep` writes provisional rows of these steps, in place of those it wrote before."""
        super().__init__("provisional")
        self._watch = watch
        self._keep = keep
        self._now_ns = now_ns
        self._kept: tuple[int, int] | None = None
        """First and last step of those kept last."""

    def _run(self) -> None:
        wait_s = _LOOK_S
        while not self._end.wait(wait_s):
            try:
                wait_s = self.look()
            except OSError as error:
                # A full disk, or a folder that was removed: the real rows are made all the same.
                log.debug("shardtoll: provisional rows could not be kept", exc_info=error)
                wait_s = _LOOK_S
            except Exception as error:
                # The seam: a failure of ours must not kill training.
                log.warning("shardtoll: no provisional rows are kept any more: %s", error, exc_info=error)
                return

    def look(self) -> float:
        """Keep rows of what waits, if it is time; return after how many seconds to look again."""
        waiting, making = self._watch.unwritten()
        if not waiting:
            return _LOOK_S
        numbers = [each.region.step or 0 for each in waiting]
        steps = min(numbers), max(numbers)
        if steps == self._kept:
            return _LOOK_S
        due_ns = self._watch.keeping.provisional_ns(min(each.end_ns for each in waiting), making=making)
        left_s = (due_ns - self._now_ns()) / 1e9
        if left_s > 0:
            return min(max(left_s, _SHORTEST_S), _LOOK_S)
        # Before it is done: if it fails, the same rows would fail again ten times a second.
        self._kept = steps
        self._keep(waiting)
        return _LOOK_S
