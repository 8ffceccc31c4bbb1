"""Operators of a dry run that memory bandwidth bounds, held against a card's own table."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from shardtoll.analyzers.forecast.compute import Streamed, price_operator
from shardtoll.analyzers.forecast.dry.operators import work_of
from shardtoll.ledger.records.dry import DryOp

TABLE = Path(__file__).resolve().parents[4] / "benchmarks" / "results" / "gpu-h200" / "tables.csv"
NAMES = {
    "copy": "aten.copy_.default",
    "add": "aten.add.Tensor",
    "gelu": "aten.gelu.default",
    "layer_norm": "aten.native_layer_norm.default",
    "softmax": "aten._softmax.default",
}
LARGE = 65_536
"""Rows of 1,024 from which a table does not fit into the card's cache, and launches do not count."""


def operator(name: str, moved_bytes: int, *, fused: int | None = None) -> DryOp:
    return DryOp(
        step=0,
        rank=0,
        order=0,
        op=name,
        kind="elementwise",
        phase="forward",
        flops=0,
        read_bytes=moved_bytes // 2,
        written_bytes=moved_bytes - moved_bytes // 2,
        dtype="bfloat16",
        stream="compute",
        fused=fused,
    )


@pytest.mark.parametrize("kind", NAMES)
def test_a_large_operator_costs_what_an_h200_measured(kind: str) -> None:
    with TABLE.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == f"memory {kind}"]
    large = [row for row in rows if int(row["m"]) >= LARGE]
    assert len(large) == 2
    for row in large:
        took_ns = 1e3 * float(row["latency_us"])
        moved_bytes = round(float(row["moved_gbps"]) * took_ns)
        price = price_operator("h200-sxm", work_of(operator(NAMES[kind], moved_bytes)))
        assert price.expected_ns == pytest.approx(took_ns, rel=0.16)
        assert price.low_ns < took_ns < price.high_ns


def test_what_a_compiler_fuses_moves_half_whatever_it_is() -> None:
    for name in NAMES.values():
        assert work_of(operator(name, 1_000, fused=1)) == Streamed(500.0)
