"""Rates of other kernels and other head dimensions, relative to a table of the best attention kernel at 128.

A head half as wide halves the matrix products, not the exponentials. Tensor cores of Hopper are very fast: in
a forward, exponentials take half as long as the products at 128, and as long at 64.
"""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.forecast.compute.cards import Card
from shardtoll.analyzers.forecast.compute.grid import shares
from shardtoll.analyzers.forecast.compute.work import Attention, Kernel

_HOPPER: Final = (9, 0)
_USUAL: Final = 128
"""Head dimension of the tables."""
_NARROW: Final = 64
_WIDE: Final = 192


def kernel_share(card: Card, kernel: Kernel) -> float:
    """Return what a kernel reaches of the best one on this GPU: each was written for one generation."""
    if kernel == "best":
        return 1.0
    age = "hopper" if _is_hopper(card) else "ampere"
    return shares()[f"attention_{kernel}_{age}"]


def head_share(card: Card, work: Attention) -> float:
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
