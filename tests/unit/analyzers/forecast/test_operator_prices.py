"""Prices of operators: measured tables are met at their nodes, and grow as work grows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.analyzers.forecast.compute import Attention, GroupedMatmul, Matmul, Streamed, price_operator
from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.compute.grid import gpus_with, grid_of
from shardtoll.analyzers.forecast.compute.work import Kernel
from shardtoll.analyzers.roofline import gpu_to_toml
from shardtoll.ledger import UsageError

SIZES = st.integers(min_value=1, max_value=65536)


def test_a_table_is_met_at_its_nodes():
    # compute_eff.csv: A100-80G SXM, bfloat16, 8192 x 16384 x 8192 took 8413.08 us, 261.4 TFLOP/s.
    price = price_operator("a100-sxm-80gb", Matmul(8192, 16384, 8192))
    assert price.expected_ns == pytest.approx(8_413_080, rel=2e-3)
    assert price.low_ns < price.expected_ns < price.high_ns
    assert "aiconfigurator" in price.source


@settings(max_examples=60, deadline=None)
@given(SIZES, SIZES, SIZES, st.sampled_from(["h100-sxm", "b200-sxm", "a100-sxm-40gb", "mi300x"]))
def test_no_matmul_is_faster_than_the_peak_or_free(m: int, n: int, k: int, gpu: str):
    work = Matmul(m, n, k)
    price = price_operator(gpu, work)
    assert price.expected_ns >= work.flops / 2600e3
    assert price.expected_ns >= 1000


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(gpus_with("matmul")), st.integers(0, 5), st.integers(0, 5), st.integers(0, 4))
def test_twice_the_rows_never_take_less(gpu: str, m: int, n: int, k: int):
    one = price_operator(gpu, Matmul(256 << m, 512 << n, 512 << k)).expected_ns
    two = price_operator(gpu, Matmul(512 << m, 512 << n, 512 << k)).expected_ns
    # Measured tables have steps: a wave more or less of thread blocks.
    assert two >= 0.8 * one


def test_a_share_between_two_nodes_lies_between_theirs():
    grid = grid_of("matmul", "h100-sxm")
    assert grid is not None
    low, high = grid.share((4096, 4096, 4096))[0], grid.share((8192, 4096, 4096))[0]
    middle, within = grid.share((5793, 4096, 4096))
    assert within
    assert min(low, high) <= middle <= max(low, high)
    assert grid.share((1 << 20, 4096, 4096))[0] == grid.share((32768, 4096, 4096))[0]
    assert not grid.share((16, 4096, 4096))[1]


def test_attention_counts_the_causal_half_once():
    whole = Attention(1, 4096, 4096, 32, 8, 128, causal=False)
    half = Attention(1, 4096, 4096, 32, 8, 128)
    assert whole.flops == 2 * half.flops == 4 * 4096 * 4096 * 32 * 128
    assert Attention(1, 4096, 4096, 32, 8, 128, direction="backward").flops == 2.5 * half.flops
    forward = price_operator("h100-sxm", half).expected_ns
    backward = price_operator(
        "h100-sxm", Attention(1, 4096, 4096, 32, 8, 128, direction="backward")
    ).expected_ns
    assert 2 * forward < backward < 4 * forward


def test_a_grouped_matmul_lies_between_one_and_its_groups():
    grouped = price_operator("h100-sxm", GroupedMatmul(8, 512, 4096, 4096)).expected_ns
    one = price_operator("h100-sxm", Matmul(4096, 4096, 4096)).expected_ns
    apart = 8 * price_operator("h100-sxm", Matmul(512, 4096, 4096)).expected_ns
    assert one <= grouped <= max(one, apart)


def test_streamed_work_goes_with_memory_bandwidth():
    a100 = price_operator("a100-sxm-80gb", Streamed(1e9)).expected_ns
    h100 = price_operator("h100-sxm", Streamed(1e9)).expected_ns
    assert a100 / h100 == pytest.approx(3350 / 2040, rel=0.01)
    assert price_operator("h100-sxm", Streamed(10.0)).expected_ns == 3000


def test_a_gpu_without_a_table_takes_a_siblings_with_a_wider_band():
    own, other = (price_operator(gpu, Matmul(4096, 4096, 4096)) for gpu in ("h100-sxm", "h100-pcie"))
    assert other.expected_ns > own.expected_ns
    assert other.high_ns / other.low_ns > own.high_ns / own.low_ns


def test_an_unknown_gpu_is_told_in_one_line():
    with pytest.raises(UsageError, match=r"no GPU named 'h1000': name one that `shardtoll gpus` lists, as "):
        price_operator("h1000", Streamed(1.0))


# make gpu on an H200, 2026-11-27 (benchmarks/results/gpu-h200/tables.csv): batch, tokens, head dimension, us
# forward and backward, 32 heads.
ON_AN_H200 = (
    (4, 4096, 128, 944.8, 2909.9),
    (2, 8192, 128, 1742.4, 5627.9),
    (4, 4096, 64, 663.2, 1877.3),
    (2, 8192, 64, 1249.2, 3419.1),
    (1, 16384, 64, 2391.3, 6431.8),
)


@pytest.mark.parametrize(("batch", "tokens", "width", "forward_us", "backward_us"), ON_AN_H200)
def test_attention_is_priced_as_a_card_took_it_by_head_dimension(
    batch: int, tokens: int, width: int, forward_us: float, backward_us: float
):
    for direction, measured_us in (("forward", forward_us), ("backward", backward_us)):
        work = Attention(batch, tokens, tokens, 32, 32, width, direction=direction)
        assert price_operator("h200-sxm", work).expected_ns == pytest.approx(1000 * measured_us, rel=0.1)


def test_an_older_kernel_of_attention_is_slower_where_a_newer_one_was_written_for_the_gpu():
    def time_ns(gpu: str, kernel: Kernel) -> float:
        return price_operator(gpu, Attention(4, 4096, 4096, 32, 8, 128, kernel=kernel)).expected_ns

    assert time_ns("a100-sxm-80gb", "best") == time_ns("a100-sxm-80gb", "flash2")
    assert time_ns("a100-sxm-80gb", "flash2") < 0.6 * time_ns("a100-sxm-80gb", "flash1")
    assert time_ns("h100-sxm", "best") < 0.65 * time_ns("h100-sxm", "flash2")
    assert time_ns("h100-sxm", "flash2") < 0.6 * time_ns("h100-sxm", "flash1")


def test_attention_takes_the_capability_of_a_users_file():
    """What the file writes is read once, as two numbers: 10.0 is above 9.0, as no text is."""
    blackwell = gpu_to_toml(card_of("h100-sxm").gpu).replace('"9.0"', '"10.0"')
    ampere = blackwell.replace('"10.0"', '"8.0"')
    work = Attention(4, 4096, 4096, 32, 8, 128, kernel="flash2")
    assert price_operator(blackwell, work).expected_ns > 1.5 * price_operator(ampere, work).expected_ns


# The same file: rows, columns, depth, us in 8 bits (scaled product, no cast) and in bfloat16, with a launch.
LAUNCH_US = 8.2
IN_8_BITS = (
    (8192, 8192, 8192, 774.3, 1411.2),
    (8192, 1024, 8192, 105.0, 179.6),
    (16384, 1024, 16384, 418.9, 803.1),
    (4096, 4096, 4096, 113.3, 197.8),
    (8192, 8192, 1024, 123.0, 198.6),
    (1024, 8192, 4096, 62.4, 96.8),
    (8192, 1024, 1024, 31.1, 32.9),
    (16384, 256, 8192, 56.9, 104.5),
)


@pytest.mark.parametrize(("m", "n", "k", "narrow_us", "wide_us"), IN_8_BITS)
def test_products_in_8_bits_gain_what_they_gained_on_a_card(
    m: int, n: int, k: int, narrow_us: float, wide_us: float
):
    """Beside bfloat16: this card was up to 14 % slower than the tables' in both. They hold no cast, and lose
    nothing more with it: not the time that each product takes."""
    narrow, wide = (
        price_operator("h200-sxm", Matmul(m, n, k, dtype)).expected_ns for dtype in ("float8", "bfloat16")
    )
    measured = (narrow_us - LAUNCH_US) / (wide_us - LAUNCH_US)
    assert narrow / wide == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("gpu", gpus_with("matmul", "float8"))
@pytest.mark.parametrize("dtype", ["float8", "float4"])
def test_no_small_product_loses_its_own_time_with_the_cast(gpu: str, dtype: str):
    """At 512 x 512 x 512 nearly all of a product is what each takes, in any type."""
    narrow, wide = grid_of("matmul", gpu, dtype), grid_of("matmul", gpu)
    if narrow is None:
        assert dtype == "float4"
        return
    assert wide is not None
    place = (512, 512, 512)
    gain = card_of(gpu).peak_tflops(dtype) / card_of(gpu).peak_tflops("bfloat16")
    assert wide.share(place)[0] / narrow.share(place)[0] / gain >= 0.65
