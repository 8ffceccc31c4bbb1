"""Rows that were held back, as a session writes them."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardtoll.ledger import Count, StepRows
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.capture.rows import Ended, Passed
from shardtoll.profiler.live.capture.sequence import Template
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.module_names import Names
from shardtoll.profiler.live.cause.pending import Message, PendingCollective, Place, Region
from shardtoll.profiler.live.session.regions import Regions
from shardtoll.profiler.live.times.clock import Clock
from shardtoll.profiler.live.times.device_times import DeviceReading


class Kept:
    """What was written, and how often it was described."""

    def __init__(self) -> None:
        self.rows: list[StepRows] = []
        self.steps: list[int] = []
        self.described = 0

    def append(self, *rows: StepRows) -> bool:
        self.rows += rows
        return bool(rows)

    def append_batches(self, rows: Any) -> None:
        self.steps += rows["steps"]["step"].to_pylist()

    def describe(self) -> None:
        self.described += 1


def rows_of(step: int) -> StepRows:
    return StepRows(None, counts=(Count(step, 0, "pg", 1, 1),))


def test_a_region_whose_rows_cannot_be_made_takes_no_others_with_it() -> None:
    recorder = Recorder(0, Names(None), Groups(), Clock(lambda: 0, lambda: 0), host_times=True)
    kept, unused = Kept(), cast(Any, None)
    regions = Regions(recorder, unused, unused, unused, cast(Any, kept), is_fake=False)

    def broken(_: object) -> StepRows:
        raise ValueError("no rows")

    for finish in (lambda _: rows_of(1), lambda _: rows_of(2), broken, lambda _: rows_of(4)):
        recorder.hold(None, finish)
    with pytest.raises(ValueError, match="no rows"):
        regions.append_finished(wait=True)
    assert kept.rows == [rows_of(1), rows_of(2)]
    regions.append_finished(wait=True)
    assert kept.rows == [rows_of(1), rows_of(2), rows_of(4)]
    assert kept.described == 2


def test_a_watched_region_whose_rows_cannot_be_made_takes_no_others_with_it() -> None:
    clock = Clock(lambda: 0, lambda: 0)
    recorder = Recorder(0, Names(None), Groups(), clock, host_times=False)
    kept, unused = Kept(), cast(Any, None)
    watch = SimpleNamespace(let_go=lambda gone: None)
    regions = Regions(recorder, unused, cast(Any, watch), unused, cast(Any, kept), is_fake=False)
    message = Message("all_reduce", "pg", 2, "float32", 64, 64, "SUM")
    known = PendingCollective(message, Place("forward"), 1, 1, growth=1, key=(0,))
    template = Template((known,), (1,), ((0,),), (0,), {"pg": 1}, surveyed=True)
    for step in range(9):
        region = Region(step, 100 * step, {"pg": 0}, light=True, watched=True)
        region.collectives = [PendingCollective(message, Place("forward"), 1, 1, growth=1, key=(0,))]
        ended = Ended(region, 100 * step + 90, {"pg": 1}, template=template, same=True)
        # No reading: its stalls cannot be looked up.
        reading = cast(Any, object()) if step == 4 else DeviceReading(90, ())
        recorder.hold(None, partial(lambda passed, _: passed, Passed(ended, reading)))
    with pytest.raises(AttributeError, match="stalls"):
        regions.append_finished(wait=True)
    assert kept.steps == [0, 1, 2, 3, 5, 6, 7, 8]
