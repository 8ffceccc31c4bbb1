"""How long a thread was awake, and what surveying adds to its operators."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from shardtoll.profiler.live.capture.slowdown import Slowing, slowed
from shardtoll.profiler.live.cause.pending import Region
from shardtoll.profiler.live.times.awake import Awake, Moment, Stretch, between

SLEEP_NS = 50_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not tell")
def test_sleep_is_no_time_awake():
    thread = Awake()
    begun, begun_ns = thread.now(), time.monotonic_ns()
    time.sleep(SLEEP_NS / 1e9)
    stretch = between(begun, thread.now())
    lasted_ns = time.monotonic_ns() - begun_ns
    thread.close()
    assert stretch is not None
    assert 0.9 * SLEEP_NS <= stretch.asleep_ns(lasted_ns) <= lasted_ns


def test_of_two_threads_nothing_is_known():
    moments: list[Moment | None] = []
    thread = Awake()
    moments.append(thread.now())
    other = threading.Thread(target=lambda: moments.append(thread.now()))
    other.start()
    other.join()
    thread.close()
    assert between(moments[0], moments[1]) is None


@pytest.mark.parametrize("text", [None, "", "12", "one two three"])
def test_where_the_system_does_not_tell_nothing_is_known(tmp_path: Path, text: str | None):
    where = tmp_path / "schedstat"
    if text is not None:
        where.write_text(text)
    thread = Awake(str(where))
    assert thread.now() is None
    assert thread.now() is None
    assert between(None, Moment(1, 2, 3)) is None


def test_sleep_is_what_is_left_and_crowding_what_cores_lacked():
    stretch = Stretch(ran_ns=40, delayed_ns=20)
    assert (stretch.asleep_ns(100), stretch.asleep_ns(50), stretch.crowding) == (40, 0, 1.5)
    assert Stretch(0, 5).crowding == 1.0


def test_a_survey_adds_the_same_to_each_operator_and_more_where_cores_are_shared():
    region = Region(0, 0, {})
    region.ran.extend(range(12))
    assert slowed(region, Slowing(100, 1000), None) == (300, 3000)
    assert slowed(region, Slowing(100, 1000), Stretch(10, 10)) == (600, 6000)
    assert slowed(region, None, None) == (0, 0)
