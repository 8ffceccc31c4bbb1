"""When the rows of steps that have ended are made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardtoll.profiler.live.capture.keeping import Keeping

MS = 1_000_000


def settled() -> Keeping:
    """Return what has made rows so often that it makes none at once any more."""
    keeping = Keeping()
    for _ in range(4):
        keeping.add(0, 1, 1)
        assert keeping.due(0), "the first are made at once: a job may die young"
        keeping.begin_anew()
    return keeping


def test_nothing_is_due_where_nothing_waits() -> None:
    assert not Keeping().due(10**12)
    assert not settled().due(10**12)


def test_rows_wait_for_a_quarter_of_a_second_and_no_longer() -> None:
    keeping, wait_ns = settled(), 250 * MS
    keeping.add(4 * MS, 5 * MS, 1)
    keeping.add(199 * MS, 200 * MS, 1)
    assert not keeping.due(5 * MS + wait_ns - 62 * MS), "more regions like these end in time"
    assert keeping.due(5 * MS + wait_ns - 61 * MS), "if the next one lasts, another thread needs its time"
    assert keeping.due(5 * MS + wait_ns), "the oldest counts"
    keeping.begin_anew()
    assert not keeping.due(10**12)


def test_what_would_be_too_old_at_the_next_end_does_not_wait_for_it() -> None:
    keeping = settled()
    end_ns = 60 * MS
    keeping.add(0, end_ns, 1)
    assert not keeping.due(end_ns), "the next ends in time, if it takes twice as long"
    keeping.add(60 * MS, 240 * MS, 1)
    assert keeping.due(240 * MS), "the next may take as long as the longest, and more"


def test_a_gap_between_steps_counts_though_it_has_no_rows() -> None:
    keeping = settled()
    for start_ms in (0, 210):
        keeping.begin_anew()
        keeping.add(start_ms * MS, (start_ms + 10) * MS, 1)
        keeping.saw((start_ms + 10) * MS, (start_ms + 210) * MS)
    assert keeping.due(221 * MS), "the next step ends 410 ms after this one"


def test_how_long_writing_takes_counts() -> None:
    quick, slow = settled(), settled()
    slow.made(0, 100 * MS)
    for keeping in (quick, slow):
        keeping.add(500 * MS, 550 * MS, 1)
    assert not quick.due(600 * MS)
    assert slow.due(600 * MS)


def test_rows_are_not_made_all_the_time_for_one_long_step() -> None:
    keeping = settled()
    keeping.add(0, 200 * MS, 1)
    keeping.begin_anew()
    keeping.made(200 * MS, 202 * MS)
    keeping.add(203 * MS, 204 * MS, 1)
    assert not keeping.due(204 * MS)
    assert keeping.due(280 * MS)


def test_many_regions_or_rows_do_not_wait() -> None:
    keeping = settled()
    keeping.add(0, 0, 19_999)
    assert not keeping.due(0)
    keeping.add(0, 0, 1)
    assert keeping.due(0)
    keeping.begin_anew()
    for _ in range(255):
        keeping.add(0, 0, 1)
    assert not keeping.due(0)
    keeping.add(0, 0, 1)
    assert keeping.due(0)


def test_provisional_rows_are_made_once_a_region_lasts_longer_than_foreseen():
    keeping = settled()
    keeping.add(0, 100 * MS, 1)
    keeping.add(100 * MS, 180 * MS, 1)
    assert keeping.provisional_ns(180 * MS, making=False) == (180 + 150) * MS, "until then it mostly ends"
    assert keeping.provisional_ns(120 * MS, making=False) == (180 + 125) * MS, "1.25 times as long"
    assert keeping.provisional_ns(70 * MS, making=False) == (70 + 190) * MS, "while it can be written"


def test_provisional_rows_of_what_is_being_made_wait_as_long_as_they_can():
    keeping = settled()
    keeping.add(0, MS, 1)
    keeping.made(0, 30 * MS)
    assert keeping.provisional_ns(MS, making=True) == (1 + 250 - 60 - 30) * MS
    assert keeping.provisional_ns(MS, making=False) == (1 + 150 - 30) * MS


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 60)), min_size=1, max_size=60))
def test_whenever_a_region_lasts_its_rows_can_be_kept_within_a_quarter_second(regions):
    """Regions of so many ms, and so many ms to make rows: what waits as one ends is in time even then."""
    keeping, now_ns, since_ns = settled(), 0, None
    for length_ms, making_ms in regions:
        start_ns, now_ns = now_ns, now_ns + length_ms * MS
        keeping.add(start_ns, now_ns, 1)
        since_ns = now_ns if since_ns is None else since_ns
        if keeping.due(now_ns):
            keeping.begin_anew()
            keeping.made(now_ns, now_ns + making_ms * MS)
            now_ns, since_ns = now_ns + making_ms * MS, None
            continue
        assert now_ns <= keeping.provisional_ns(since_ns, making=False) <= since_ns + 250 * MS
