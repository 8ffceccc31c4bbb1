"""Rows of the values' and parameters' tables, made of plain numpy arrays."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from shardtoll.ledger import SKETCH_COLUMNS, Parameter, Value

MOST = 4096
SIGNS = np.random.default_rng(7).choice([-1.0, 1.0], size=(8, MOST))


def value(kind: str, name: str, rank: int, array: Any, *, step: int | None = 0, **given: Any) -> Value:
    """Return what a rank held: fingerprint, square and sketch of an array of at most 4096 elements."""
    array = np.asarray(array)
    flat = array.astype(np.float64).ravel()
    finite = bool(np.isfinite(flat).all())
    sketch = SIGNS[:, : flat.size] @ flat if finite else np.zeros(0)
    number = int.from_bytes(hashlib.sha256(array.tobytes()).digest()[:8], "little", signed=True)
    values: dict[str, Any] = {
        "step": step,
        "rank": rank,
        "kind": kind,
        "name": name,
        "nth": 0,
        "dtype": str(array.dtype),
        "shape": str(list(array.shape)),
        "placements": None,
        "mesh_dims": None,
        "numel": array.size,
        "hash": number,
        "constant": bool((flat == flat[0]).all()),
        "square": float(flat @ flat) if finite else None,
        **(dict(zip(SKETCH_COLUMNS, sketch.tolist(), strict=True)) if finite else {}),
    }
    return Value(**(values | given))


def parameter(name: str, rank: int, shape: tuple[int, ...] = (8, 4), **given: Any) -> Parameter:
    """Return a plain trained parameter with a gradient, that nothing wraps."""
    values: dict[str, Any] = {
        "rank": rank,
        "name": name,
        "shape": str(list(shape)),
        "local_shape": str(list(shape)),
        "dtype": "float32",
        "numel": int(np.prod(shape)),
        "requires_grad": True,
        "has_grad": True,
    }
    return Parameter(**(values | given))


def noise(seed: int, shape: tuple[int, ...] = (8, 4)) -> Any:
    """Return float32 numbers that no other seed has."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
