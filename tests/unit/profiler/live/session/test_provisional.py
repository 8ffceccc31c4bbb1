"""When the thread that keeps provisional rows does so, without the thread."""

from __future__ import annotations

from typing import Any

from shardtoll.profiler.live.capture.keeping import Keeping
from shardtoll.profiler.live.capture.rows import Ended
from shardtoll.profiler.live.cause.pending import Region
from shardtoll.profiler.live.session.provisional import Provisional

MS = 1_000_000


class Waiting:
    """What waits for its rows, as a watch has it."""

    def __init__(self) -> None:
        self.keeping = Keeping()
        self.steps: list[Ended] = []
        self.making = False

    def unwritten(self) -> tuple[list[Ended], bool]:
        return self.steps, self.making

    def end(self, step: int, start_ms: int, end_ms: int) -> None:
        self.steps = [*self.steps, Ended(Region(step, start_ms * MS, {}), end_ms * MS, {})]
        self.keeping.add(start_ms * MS, end_ms * MS, 1)


class Looks:
    def __init__(self) -> None:
        self.watch: Any = Waiting()
        self.kept: list[list[int]] = []
        self.now_ns = 0
        self.provisional = Provisional(self.watch, self._keep, lambda: self.now_ns)

    def _keep(self, steps: Any) -> None:
        self.kept.append([each.region.step for each in steps])

    def at(self, ms: int) -> float:
        self.now_ns = ms * MS
        return self.provisional.look()


def test_nothing_is_kept_while_nothing_waits() -> None:
    looks = Looks()
    assert looks.at(10_000) == 0.1
    assert not looks.kept


def test_what_waits_is_kept_once_while_a_region_lasts() -> None:
    looks = Looks()
    looks.watch.end(3, 0, 10)
    looks.watch.end(4, 10, 20)
    assert looks.at(20) == 0.1, "what waits is looked at again in time"
    assert looks.at(130) == 0.03
    assert not looks.kept
    looks.at(160)
    assert looks.kept == [[3, 4]]
    looks.at(400)
    assert looks.kept == [[3, 4]], "they are there"
    looks.watch.end(5, 20, 500)
    looks.at(900)
    assert looks.kept[1:] == [[3, 4, 5]]


def test_short_steps_that_end_as_foreseen_are_left_to_the_training_thread() -> None:
    looks = Looks()
    for step in range(10):
        looks.watch.end(step, 18 * step, 18 * step + 18)
    assert looks.at(181) == 0.0215, "the step that runs is as long as the others by then"
    assert looks.at(202) == 0.015, "no more often than that"
    assert not looks.kept
    looks.at(203)
    assert looks.kept


def test_rows_that_take_long_to_be_made_are_kept_meanwhile() -> None:
    looks = Looks()
    looks.watch.end(0, 0, 10)
    looks.watch.making = True
    looks.at(199)
    assert not looks.kept
    looks.at(200)
    assert looks.kept == [[0]]
