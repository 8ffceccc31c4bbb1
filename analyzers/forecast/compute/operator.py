"""The price of one operator on one GPU, with a band and where it comes from.

Rates of other kernels and other head dimensions, relative to a table of the best attention kernel at 128.

A head half as wide halves the matrix products, not the exponentials. Tensor cores of Hopper are very fast: in
a forward, exponentials take half as long as the products at 128, and as long at 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from shardtoll.analyzers.forecast.compute.cards import Card, card_of, sibling_of
from shardtoll.analyzers.forecast.compute.grid import grid_of, shares
from shardtoll.analyzers.forecast.compute.work import Attention, GroupedMatmul, Kernel, Matmul, Streamed, Work

_WITHIN: Final = 1.12
"""Factor of the band of a shape inside a table: 90 % of held-out shapes lie within 10.5 %
(`docs/forecast.md`)."""

_BEYOND: Final = 1.3
"""The same for a shape beyond the table, and for operators that bandwidth bounds."""

_OTHER_GPU: Final = 1.45
"""The same for a GPU that has no table and takes a sibling's shares."""

_HOPPER: Final = (9, 0)

_USUAL: Final = 128
"""Head dimension of the tables."""

_NARROW: Final = 64

_WIDE: Final = 192


@dataclass(frozen=True, slots=True)
class Price:
    """Time of an operator on the device, without launch gaps and without the sustained factor of a job."""

    expected_ns: float
    low_ns: float
    """Eight of ten runs take at least this and at most `high_ns`."""
    high_ns: float
    source: str


@lru_cache(maxsize=65536)
def price_operator(gpu: str, work: Work) -> Price:
    """Return the price of the operator on a GPU, by a key as `card_of` takes.

    Raises ShardtollError for an unknown GPU, with the known ones.
    """
    card = card_of(gpu)
    if isinstance(work, Streamed):
        return _streamed(card, work)
    if isinstance(work, Attention):
        return _attention(card, work)
    if isinstance(work, GroupedMatmul):
        return _grouped(card, work)
    return _matmul(card, work)


def _streamed(card: Card, work: Streamed) -> Price:
    share = shares()["memory"]
    floor_ns = work.kernels * 1000 * shares()["kernel_floor_us"]
    time_ns = max(work.bytes / (card.memory_gbps * share), floor_ns)
    return Price(time_ns, time_ns / _BEYOND, time_ns * _BEYOND, f"bytes over {share:.0%} of memory bandwidth")


def _matmul(card: Card, work: Matmul) -> Price:
    dtype = _table_dtype(card, work.dtype)
    sibling = sibling_of(card.key, "matmul", dtype)
    grid = None if sibling is None else grid_of("matmul", sibling.name, dtype)
    if sibling is None or grid is None:
        return _by_constant(card, work.flops, _memory_ns(card, work), work.dtype)
    share, within = grid.share((work.m * work.batch, work.n, work.k))
    scale = 1.0 if sibling is card else card.matmul_share / sibling.matmul_share
    time_ns = work.flops / (card.peak_tflops(work.dtype) * 1e3 * share * scale)
    time_ns = max(time_ns, _memory_ns(card, work), 1000 * shares()["kernel_floor_us"])
    factor = _WITHIN if within else _BEYOND
    if work.moved_bytes is not None:
        factor = _of_convolution(card, work, time_ns)
    if work.dtype == "tf32":
        return _band(time_ns, max(factor, _OTHER_GPU), f"{grid.source}, the shares of 16 bits")
    if sibling is not card:
        return _band(time_ns, max(factor, _OTHER_GPU), f"{grid.source}, scaled from {sibling.name}")
    return _band(time_ns, factor, grid.source)


def _memory_ns(card: Card, work: Matmul) -> float:
    """Return how long its bytes take: a light, which the table's times include. No table has convolutions, so
    theirs move as fast as those of operators that bandwidth bounds."""
    share = 1.0 if work.moved_bytes is None else shares()["memory"]
    return work.bytes / (card.memory_gbps * share)


def _of_convolution(card: Card, work: Matmul, time_ns: float) -> float:
    """Return the factor of the band of a convolution, which a table of matmuls stands for.

    One of many groups multiplies matrices far smaller than any in a table, and its rate is a guess. So the
    band reaches down to its bytes at the whole bandwidth, and as far up.
    """
    light_ns = work.bytes / card.memory_gbps
    return max(_OTHER_GPU, time_ns / light_ns) if work.batch > 1 and light_ns else _OTHER_GPU


def _attention(card: Card, work: Attention) -> Price:
    if work.dtype == "float32":
        # The tables are of kernels that take 16 bits.
        return _by_constant(card, work.flops, 0.0, work.dtype)
    sibling = sibling_of(card.key, "attention", "bfloat16")
    grid = None if sibling is None else grid_of("attention", sibling.name)
    assert sibling is not None, "some GPU has a table of attention"
    assert grid is not None
    tiles = work.batch * work.heads
    reach = max(1, round(max(work.queries, work.keys) if work.causal else work.queries))
    share, within = grid.share((tiles, reach))
    if work.direction == "backward":
        # A backward fills a small GPU sooner than a forward: its share is bounded below by the forward's
        # ratio.
        full, _ = grid.share((max(tiles, 64), reach))
        share = shares()["attention_backward"] * (share * full) ** 0.5
    share *= _head_share(card, work) * _kernel_share(card, work.kernel)
    scale = 1.0 if sibling is card else card.matmul_share / sibling.matmul_share
    dtype = "bfloat16" if work.dtype.startswith("float8") else work.dtype
    time_ns = work.flops / (card.peak_tflops(dtype) * 1e3 * share * scale)
    time_ns = max(time_ns, 1000 * shares()["kernel_floor_us"])
    factor = _WITHIN if within and sibling is card else _OTHER_GPU if sibling is not card else _BEYOND
    return _band(time_ns, factor, grid.source)


def _grouped(card: Card, work: GroupedMatmul) -> Price:
    one = _matmul(card, Matmul(work.m, work.n, work.k, work.dtype))
    whole = _matmul(card, Matmul(work.m * work.groups, work.n, work.k, work.dtype))
    # Groups share waves: a grouped kernel lies between one matmul and its groups one after another.
    time_ns = (
        whole.expected_ns ** (1 - shares()["grouped"])
        * (work.groups * one.expected_ns) ** shares()["grouped"]
    )
    return _band(max(time_ns, whole.expected_ns), _BEYOND, f"grouped, from {whole.source}")


def _by_constant(card: Card, flops: float, memory_ns: float, dtype: str) -> Price:
    rate = card.peak_tflops(dtype) * 1e3 * card.matmul_share
    time_ns = max(flops / rate, memory_ns, 1000 * shares()["kernel_floor_us"])
    return _band(time_ns, _OTHER_GPU, "share of the peak that large matmuls reach")


def _band(time_ns: float, factor: float, source: str) -> Price:
    return Price(time_ns, time_ns / factor, time_ns * factor, source)


def _table_dtype(card: Card, dtype: str) -> str:
    """Return the format whose table stands for a dtype; the dtype itself if no other does."""
    if dtype.startswith("float8"):
        return "float8"
    if dtype.startswith("float4"):
        return "float4"
    if dtype == "tf32" and "tf32" in card.gpu.peak_tflops:
        # The same tensor cores at half the rate: nobody measured a table of them.
        return "bfloat16"
    return "bfloat16" if dtype in ("bfloat16", "float16") else dtype


def _kernel_share(card: Card, kernel: Kernel) -> float:
    """Return what a kernel reaches of the best one on this GPU: each was written for one generation."""
    if kernel == "best":
        return 1.0
    age = "hopper" if _is_hopper(card) else "ampere"
    return shares()[f"attention_{kernel}_{age}"]


def _head_share(card: Card, work: Attention) -> float:
    """Return what its head dimension reaches of the share at 128."""
    width = work.head_dim
    if width >= _USUAL:
        return 1.0 if width < _WIDE else shares()["attention_head_192"]
    narrow = shares()["attention_head_64"]
    if work.kernel == "best" and _is_hopper(card):
        narrow = shares()[f"attention_head_64_hopper_{work.direction}"]
    return narrow * min(1.0, width / _NARROW) + max(0, width - _NARROW) / _NARROW * (1 - narrow)


def _is_hopper(card: Card) -> bool:
    return card.gpu.capability is not None and card.gpu.capability >= _HOPPER
