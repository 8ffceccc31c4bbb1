from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.ledger.words import human


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (None, "unknown"),
        (float("nan"), "unknown"),
        (0, "0 ns"),
        (1, "1 ns"),
        (999, "999 ns"),
        (999.6, "1.00 µs"),
        (1_000, "1.00 µs"),
        (9_995, "10.0 µs"),
        (12_345, "12.3 µs"),
        (99_950, "100 µs"),
        (999_499, "999 µs"),
        (999_500, "1.00 ms"),
        (4_560_000, "4.56 ms"),
        (7_890_000_000, "7.89 s"),
        (7_200_000_000_000, "7,200 s"),
        (-1_500, "-1.50 µs"),
    ],
)
def test_duration(ns: float | None, words: str):
    assert human.duration(ns) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (512, "512 B"),
        (1024, "1.02 kB"),
        (2_097_152, "2.10 MB"),
        (10**12, "1.00 TB"),
    ],
)
def test_size_is_decimal(count: int | None, words: str):
    assert human.size(count) == words


@pytest.mark.parametrize(
    ("gbps", "words"),
    [
        (None, "unknown"),
        (0.0, "0 B/s"),
        (0.35, "350 MB/s"),
        (0.00102, "1.02 MB/s"),
        (5e-8, "50 B/s"),
        (12.34, "12.3 GB/s"),
    ],
)
def test_rate(gbps: float | None, words: str):
    assert human.rate(gbps) == words


def test_work_share_number_and_plural():
    assert human.work(2 * 4096**3) == "137 GFLOP"
    assert (human.share(1, 8), human.share(1, 100), human.share(1, 0), human.share(None, 1)) == (
        "12 %",
        "1.0 %",
        "unknown",
        "unknown",
    )
    assert (human.number(12345), human.number(0.5), human.number(None)) == ("12,345", "0.5", "unknown")
    assert (human.plural(1, "step"), human.plural(1200, "step"), human.plural(2, "bus", "buses")) == (
        "1 step",
        "1,200 steps",
        "2 buses",
    )


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (None, "ns", "unknown"),
        (1500, "ns", "1.50 µs"),
        (1500, "bytes", "1.50 kB"),
        (0.47, "GB/s", "470 MB/s"),
        (1500, "FLOP", "1.50 kFLOP"),
        (4, "x", "4x"),
        (0.25, "x", "0.25x"),
        (4096, None, "4,096"),
        (3, "ranks", "3 ranks"),
        ("as text", None, "as text"),
        ("7", "apples", "7 apples"),
    ],
)
def test_quantity(value: float | str | None, unit: str | None, words: str):
    assert human.quantity(value, unit) == words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((), "none"),
        ((3,), "3"),
        ((0, 1, 2, 3), "0-3"),
        ((7, 0, 1, 2), "0-2, 7"),
        ((1, 3, 4), "1, 3-4"),
        ((2, 2), "2"),
    ],
)
def test_runs(ranks: tuple[int, ...], words: str):
    assert human.runs(ranks) == words


@pytest.mark.parametrize(
    ("fraction", "words"),
    [
        (0, "0 %"),
        (1e-5, "0.001 %"),
        (0.0006, "0.06 %"),
        (1e-9, "<0.0001 %"),
        (0.00099, "0.1 %"),
        (0.01, "1.0 %"),
        (0.0996, "10 %"),
        (1.5, "150 %"),
        (-0.2, "-20 %"),
    ],
)
def test_percent(fraction: float, words: str):
    assert human.percent(fraction) == words


def test_an_unknown_in_a_sentence_has_its_noun():
    assert (human.some_time(None), human.some_size(None)) == ("an unknown time", "an unknown size")
    assert (human.some_time(5), human.some_size(512)) == ("5 ns", "512 B")


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "1 all_gather"), (0.33, "0.33 all_gathers"), (2, "2 all_gathers"), (1200, "1,200 all_gathers")],
)
def test_plural(count: float, words: str):
    assert human.plural(count, "all_gather") == words
    assert human.plural(3, "loss") == "3 losses"


@pytest.mark.parametrize(
    ("each", "words"),
    [
        (3, "3 all_gathers"),
        (1, "1 all_gather"),
        (0.5, "1 all_gather in 2 steps"),
        (0.67, "2 all_gathers in 3 steps"),
        (0.02, "1 all_gather in 50 steps"),
        (0.0, "less than 1 all_gather in 100 steps"),
    ],
)
def test_a_mean_below_one_a_step_is_told_in_whole_numbers(each: float, words: str):
    assert human.in_steps(each, "all_gather") == words


@given(st.floats(min_value=1, max_value=1e18, allow_nan=False))
def test_what_is_shown_is_within_half_a_percent(ns: float):
    words = human.duration(ns)
    value, unit = words.split(" ")
    shown = float(value.replace(",", "")) * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert abs(shown - ns) <= 0.0051 * ns
    assert len(words) <= 9 or unit == "s"


@pytest.mark.parametrize(
    ("count", "verb", "words"),
    [
        (7, "wait", "the others wait"),
        (1, "wait", "the other rank waits"),
        (7, "have", "the others have"),
        (1, "have", "the other rank has"),
        (2, "", "the others"),
        (1, "", "the other rank"),
    ],
)
def test_one_that_is_left_is_no_several(count: int, verb: str, words: str):
    assert human.others(count, verb) == words
