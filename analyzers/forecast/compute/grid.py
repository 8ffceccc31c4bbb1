"""Measured tables of matmuls and attention, read once from the packaged data.

A table holds the share of the dense peak that a shape reached. Between its nodes the logarithm of the time is
interpolated linearly in the logarithms of the sizes. The data says where the times were measured.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from itertools import product
from typing import Any, Final

DATA: Final = "shardtoll.analyzers.forecast.data"


@dataclass(frozen=True)
class Grid:
    """Shares of the peak at the crossings of some axes."""

    axes: tuple[tuple[float, ...], ...]
    """Logarithms of the sizes, ascending, one tuple an axis."""
    values: tuple[float, ...]
    """Logarithms of the shares, the last axis running fastest."""
    source: str

    def share(self, sizes: tuple[int, ...]) -> tuple[float, bool]:
        """Return the share of the peak, and whether no size lies below the table.

        Above the table the share of its edge holds. Below it the logarithm of the time goes on with the slope
        of the last cell. So a small operator still costs something.
        """
        corners: list[tuple[tuple[int, float], tuple[int, float]]] = []
        within, below = True, 0.0
        for axis, size in zip(self.axes, sizes, strict=True):
            place = math.log(max(size, 1))
            low = max(0, min(bisect_right(axis, place) - 1, len(axis) - 2))
            fraction = (place - axis[low]) / (axis[low + 1] - axis[low])
            if not -1e-9 <= fraction <= 1 + 1e-9:
                within = within and fraction > 1
                fraction = min(fraction, 1.0)
            if fraction < 0:
                below += 1
            corners.append(((low, 1 - fraction), (low + 1, fraction)))
        total = 0.0
        strides = self._strides()
        for corner in product(*corners):
            index = sum(place * stride for (place, _), stride in zip(corner, strides, strict=True))
            weight = math.prod(part for _, part in corner)
            total += weight * self.values[index]
        return math.exp(min(total, 0.0)), within

    def _strides(self) -> tuple[int, ...]:
        strides, step = [], 1
        for axis in reversed(self.axes):
            strides.append(step)
            step *= len(axis)
        return tuple(reversed(strides))


@cache
def _tables() -> dict[str, Any]:
    text = resources.files(DATA).joinpath("forecast_compute.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables


@lru_cache(maxsize=64)
def grid_of(kind: str, gpu: str, dtype: str = "bfloat16") -> Grid | None:
    """Return the table of `matmul` or `attention` on a GPU (a key of `gpus.toml`); None if there is none."""
    entry = _tables()[kind].get(gpu, {}).get(dtype)
    if entry is None:
        return None
    axes = tuple(tuple(math.log(size) for size in axis) for axis in entry["axes"])
    values = tuple(math.log(share / 10000) for share in entry["share_e4"])
    return Grid(axes, values, entry["source"])


@cache
def gpus_with(kind: str, dtype: str = "bfloat16") -> tuple[str, ...]:
    """Return the GPUs that have a table of that kind."""
    return tuple(sorted(gpu for gpu, by_dtype in _tables()[kind].items() if dtype in by_dtype))


@cache
def shares() -> dict[str, float]:
    """Return the scalar shares of the packaged data, as `attention_backward`."""
    return {name: float(entry["value"]) for name, entry in _tables()["shares"].items()}
