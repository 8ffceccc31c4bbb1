"""How far a gradient is from the true one: sums of squares, in float64, a piece at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

PIECE: Final = 1 << 22
"""Elements compared at once: bounds the float64 copies to 32 MiB each."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Common measures of one rank's vector g and its slice G of the true gradient.

    Sums over the rank's elements. Every distance |g - kG| follows from them. The one for k = 1 is summed on
    its own, as the difference of large sums would lose it.
    """

    numel: int
    own_sq: float
    """sum g^2"""
    true_sq: float
    """sum G^2"""
    product: float
    """sum g G"""
    apart_sq: float
    """sum (g - G)^2"""

    @property
    def finite(self) -> bool:
        """Whether g has no NaN and no infinity."""
        return math.isfinite(self.own_sq) and math.isfinite(self.apart_sq)

    @property
    def error(self) -> float | None:
        """|g - G| / |G|; None if it is not a number (infinity excluded), or if G is zero and g is not."""
        if not self.finite:
            return None
        if self.true_sq == 0:
            return 0.0 if self.apart_sq == 0 else None
        return math.sqrt(self.apart_sq / self.true_sq)

    @property
    def ratio(self) -> float | None:
        """|g| / |G|; None if it is not a finite number."""
        return math.sqrt(self.own_sq / self.true_sq) if self.finite and self.true_sq > 0 else None

    def apart_from(self, factor: float) -> float:
        """|g - factor G|."""
        if factor == 1:
            return math.sqrt(self.apart_sq)
        rest = self.own_sq - 2 * factor * self.product + factor * factor * self.true_sq
        return math.sqrt(max(0.0, rest))


@dataclass(frozen=True, slots=True)
class Pooled:
    """The sum of a group's vectors against the true gradient, and how far this rank is from their mean."""

    total: Overlap
    """g is the sum over the group."""
    spread_sq: float
    """sum (g_own - mean g)^2"""
    own_sq: float
    """sum g_own^2"""


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    real = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]
    flat = [tensor.reshape(-1) for tensor in real]
    wide = torch.float32 if flat[0].device.type == "mps" else torch.float64
    for start in range(0, flat[0].numel(), PIECE):
        yield tuple(part[start : start + PIECE].to(wide) for part in flat)


def _overlap(sums: torch.Tensor | None, numel: int) -> Overlap:
    own_sq, true_sq, product, apart_sq = (0.0,) * 4 if sums is None else sums.tolist()
    return Overlap(numel, own_sq, true_sq, product, apart_sq)


def _sums(mine: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    apart = mine - true
    return torch.stack([mine.dot(mine), true.dot(true), mine.dot(true), apart.dot(apart)])


def overlap(mine: torch.Tensor, true: torch.Tensor) -> Overlap:
    """Return the sums for one rank; both tensors have one shape and are on one device."""
    sums: torch.Tensor | None = None
    for piece, true_piece in _pieces(mine, true):
        part = _sums(piece, true_piece)
        sums = part if sums is None else sums + part
    return _overlap(sums, mine.numel())


def pool(mine: torch.Tensor, true: torch.Tensor, group: Any, size: int) -> Pooled:
    """Return the sums for the group's total; a collective over `group`, whose ranks hold equal slices."""
    sums: torch.Tensor | None = None
    spread: torch.Tensor | None = None
    for piece, true_piece in _pieces(mine, true):
        total = piece.clone()
        dist.all_reduce(total, group=group)
        part = _sums(total, true_piece)
        aside = piece - total / size
        square = torch.stack([aside.dot(aside), piece.dot(piece)])
        sums = part if sums is None else sums + part
        spread = square if spread is None else spread + square
    spread_sq, own_sq = (0.0, 0.0) if spread is None else spread.tolist()
    return Pooled(_overlap(sums, mine.numel()), spread_sq, own_sq)
