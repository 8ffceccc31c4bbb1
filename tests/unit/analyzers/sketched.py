"""Values for tests: what a tensor's shards leave in the ledger, with sketches made here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from shardtoll.ledger import SKETCH_COLUMNS, Parameter, Value

SIGNS = np.random.default_rng(7).choice([-1.0, 1.0], size=(8, 64, 64))
"""Of element [i, j] of any tensor up to 64 x 64."""


def value(whole: np.ndarray, rows: slice, held: np.ndarray | None = None, **given: Any) -> Value:
    """Return what a rank that holds `rows` of the matrix `whole` leaves; `held`: in their place."""
    part = whole[rows] if held is None else held
    signs = SIGNS[:, rows, : whole.shape[1]]
    sketch = (signs * part).sum(axis=(1, 2))
    values: dict[str, Any] = {
        "step": 0,
        "rank": 0,
        "kind": "gradient",
        "name": "weight",
        "nth": 0,
        "dtype": "float32",
        "shape": str(list(part.shape)),
        "placements": None,
        "mesh_dims": None,
        "numel": part.size,
        "hash": int(abs(part).sum() * 1e6),
        "constant": False,
        "square": float((part**2).sum()),
        **dict(zip(SKETCH_COLUMNS, map(float, sketch), strict=True)),
    }
    return Value(**(values | given))


def replicated(whole: np.ndarray, ranks: Iterable[int], **given: Any) -> list[Value]:
    return [value(whole, slice(0, len(whole)), rank=rank, **given) for rank in ranks]


def sharded(whole: np.ndarray, ranks: int, **given: Any) -> list[Value]:
    """Rows dealt out evenly over one mesh dimension `fsdp`."""
    size = -(-len(whole) // ranks)
    placed = {"placements": "(Shard(dim=0),)", "mesh_dims": "fsdp"}
    return [
        value(whole, slice(rank * size, max(rank * size, min(len(whole), (rank + 1) * size))), rank=rank,
              **(placed | given))
        for rank in range(ranks)
    ]  # fmt: skip


def parameter(name: str, sides: Iterable[int], rank: int = 0, **given: Any) -> Parameter:
    shape = list(sides)
    values: Mapping[str, Any] = {
        "rank": rank,
        "name": name,
        "shape": str(shape),
        "local_shape": str(shape),
        "dtype": "float32",
        "numel": int(np.prod(shape)),
        "requires_grad": True,
        "has_grad": True,
    }
    return Parameter(**{**values, **given})
