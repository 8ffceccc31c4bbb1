"""When the rows of steps that have ended are made."""

from __future__ import annotations

from shardtoll.profiler.live.capture.keeping import Keeping

MS = 1_000_000


def settled() -> Keeping:
    """Return what has made rows so often that it makes none at once any more."""
    keeping = Keeping()
    for _ in range(4):
        keeping.add(0, 1)
        assert keeping.due(0), "the first are made at once: a job may die young"
        keeping.begin_anew()
    return keeping


def test_nothing_is_due_where_nothing_waits() -> None:
    assert not Keeping().due(10**12)
    assert not settled().due(10**12)


def test_rows_wait_for_a_quarter_of_a_second_and_no_longer() -> None:
    keeping, wait_ns = settled(), 250 * MS
    keeping.add(5 * MS, 1)
    keeping.add(200 * MS, 1)
    assert not keeping.due(5 * MS + wait_ns - 1)
    assert keeping.due(5 * MS + wait_ns), "the oldest counts"
    keeping.begin_anew()
    assert not keeping.due(10**12)


def test_many_regions_or_rows_do_not_wait() -> None:
    keeping = settled()
    keeping.add(0, 19_999)
    assert not keeping.due(0)
    keeping.add(0, 1)
    assert keeping.due(0)
    keeping.begin_anew()
    for _ in range(255):
        keeping.add(0, 1)
    assert not keeping.due(0)
    keeping.add(0, 1)
    assert keeping.due(0)
