"""Operators of a dry run that memory bandwidth bounds, held against a card's own table."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from shardtoll.analyzers.forecast.compute import Matmul, Streamed, price_operator
from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.compute.grid import shares
from shardtoll.analyzers.forecast.dry.operators import products_of, work_of
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


def convolution(channels: int, groups: int, *, backward: bool = False, flops: int | None = None) -> DryOp:
    """256 images of 56 x 56 pixels in bfloat16, a window of 3 x 3, as many channels out as in."""
    pixels, window = 256 * 56 * 56, channels // groups * 9
    image, weight = 2 * pixels * channels, 2 * channels * window
    products = 2 if backward else 1
    return DryOp(
        step=0,
        rank=0,
        order=0,
        op=f"aten.convolution{'_backward' if backward else ''}.default",
        kind="gemm",
        phase="backward" if backward else "forward",
        flops=flops or products * 2 * pixels * channels * window,
        read_bytes=products * image + weight,
        written_bytes=image + (weight if backward else 0),
        dtype="bfloat16",
        batch=groups,
        m=pixels,
        n=channels // groups,
        k=window,
    )


@pytest.mark.parametrize("channels", [64, 256])
def test_a_depthwise_convolution_reads_each_pixel_once(channels: int) -> None:
    op = convolution(channels, channels)
    moved_bytes = op.read_bytes + op.written_bytes
    work = work_of(op)
    assert isinstance(work, Matmul)
    assert work.bytes == moved_bytes
    price = price_operator("h100-sxm", work)
    light_ns = moved_bytes / card_of("h100-sxm").memory_gbps
    # Its products are so small that their rate is a guess: the band begins at its bytes.
    assert light_ns / shares()["memory"] <= price.expected_ns < 3 * light_ns
    assert price.low_ns == pytest.approx(light_ns)
    assert price.expected_ns / price.low_ns == pytest.approx(price.high_ns / price.expected_ns)


def test_bandwidth_bounds_a_convolution_as_it_bounds_a_copy() -> None:
    work = work_of(convolution(64, 1))
    assert isinstance(work, Matmul)
    thin = Matmul(work.m, 64, 64, moved_bytes=work.bytes)
    assert (
        price_operator("h100-sxm", thin).expected_ns
        == price_operator("h100-sxm", Streamed(work.bytes)).expected_ns
    )
    price = price_operator("h100-sxm", work)
    assert price.expected_ns < 3 * work.bytes / card_of("h100-sxm").memory_gbps
    # Tables are of matmuls: the band of a convolution is wider than theirs.
    assert price.high_ns / price.low_ns > 2


def test_a_backward_moves_half_in_each_of_its_products() -> None:
    op = convolution(64, 1, backward=True)
    work = work_of(op)
    assert isinstance(work, Matmul)
    assert products_of(op, work) == 2
    assert 2 * work.bytes == op.read_bytes + op.written_bytes


def test_a_kept_count_of_a_grouped_backward_is_two_products() -> None:
    sound = convolution(256, 256, backward=True)
    # Until 2026-11-28 dry runs kept torch's own count.
    kept = convolution(256, 256, backward=True, flops=(1 + 256) * sound.flops // 2)
    assert work_of(kept) == work_of(sound)
    assert products_of(kept, work_of(kept)) == products_of(sound, work_of(sound)) == 2
