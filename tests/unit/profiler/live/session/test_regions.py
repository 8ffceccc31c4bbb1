"""Rows that were held back, as a session writes them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from shardtoll.ledger import Count, StepRows
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.module_names import Names
from shardtoll.profiler.live.session.regions import Regions
from shardtoll.profiler.live.times.clock import Clock


class Kept:
    """What was written, and how often it was described."""

    def __init__(self) -> None:
        self.rows: list[StepRows] = []
        self.described = 0

    def append(self, *rows: StepRows) -> bool:
        self.rows += rows
        return bool(rows)

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
