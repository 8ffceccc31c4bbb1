"""Columns that a terminal has room for, counted as a terminal counts."""

from __future__ import annotations

from rich.cells import cell_len

from shardtoll.dashboards.forecast.rows_shown import fitting


def test_wide_characters_take_two_columns() -> None:
    rows = [["語語語語語", "12 ms"]]
    assert fitting(["group", "time"], rows, 18, ["time"])[2] is None
    heads, cells, more = fitting(["group", "time"], rows, 17, ["time"])
    assert (heads, cells) == (["group"], [["語語語語語"]])
    assert more == f"--width {cell_len('語語語語語') + 3 + len('12 ms')} also shows: time"
