"""Cells of a table of steps: what cannot be read is said, and no measurement is taken from a slip."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.forecast.rows.parse import read_row
from shardtoll.analyzers.forecast.rows.row_prices import priced_row

ROW = {
    "model": "llama3-8b", "gpus": "64", "gpu": "h100-sxm", "framework": "torchtitan", "precision": "bf16",
    "seq": "8192", "mbs": "1", "gbs": "512", "shard": "fsdp", "ac": "full", "net": "ib400",
}  # fmt: skip


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        *(("tok_s_gpu", cell) for cell in ("inf", "nan", "1e30", "1e-30", "-1", "0", "many")),
        *(("step_s", cell) for cell in ("inf", "nan", "1e30", "1e-12", "-3", "0", "?")),
    ],
)
def test_a_measurement_that_none_can_be_is_none(column: str, cell: str) -> None:
    row = priced_row(1, {**ROW, column: cell})
    assert row.step_s is not None
    assert (row.measured_step_s, row.error, row.within) == (None, None, None)


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("tp", "abc", "tp 'abc' is no whole number: it is not read"),
        ("pp", "-2", "pp '-2' is no whole number: it is not read"),
        ("tp", "1.5", "tp '1.5' is no whole number: 1 is priced"),
        ("seq", "nan", "seq 'nan' is no whole number: it is not read"),
        ("precision", "int4", "precision 'int4' is unknown: bf16 is priced"),
        ("ac", "sometimes", "ac 'sometimes' is unknown: none is priced"),
    ],
)
def test_a_cell_that_its_column_cannot_hold_is_said(column: str, cell: str, said: str) -> None:
    assert priced_row(1, {**ROW, column: cell}).replaced == (said,)


@pytest.mark.parametrize(
    "cells",
    [{}, {"tp": "2.0"}, {"ac": "none"}, {"ac": "selective"}, {"precision": "fp16 (check)"}, {"vpp": "0"}],
)
def test_cells_that_hold_something_are_not_named(cells: dict[str, str]) -> None:
    assert priced_row(1, {**ROW, **cells}).replaced == ()


@pytest.mark.parametrize(("net", "gbps"), [("ib400", 50.0), ("ib200", 25.0), ("roce400", 50.0)])
def test_a_network_in_one_word_is_stated(net: str, gbps: float) -> None:
    read = read_row({**ROW, "net": net})
    assert "network" not in read.assumed
    fabric = read.network.fabric  # type: ignore[attr-defined]
    assert fabric.inter.rank_gbps.value == pytest.approx(gbps, rel=0.03)
