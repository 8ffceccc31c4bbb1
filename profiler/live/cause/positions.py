"""Position of a rank's part in its whole tensor."""

from __future__ import annotations

from typing import Any

import torch

from shardtoll.profiler.live.cause.attribute import placements_text


def starts_of(tensor: torch.Tensor, local: torch.Tensor) -> tuple[int, ...] | None:
    """Return the index of the local part's first element in the whole, by dimension; None if unknown.

    A plain tensor is taken for a whole.
    """
    mesh: Any = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return (0,) * local.dim()
    shape, start = _lies(tuple(tensor.shape), mesh, tuple(tensor.placements))  # type: ignore[attr-defined]
    return start if shape == tuple(local.shape) else None


def _lies(
    shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Return shape and start of this rank's part as checkpoints have them; None if torch does not say."""
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:
        return None, None
    local, start = compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)
    if len(start) != len(shape):
        return None, None
    return tuple(map(int, local)), tuple(map(int, start))


def layout_of(tensor: Any) -> tuple[str | None, str | None]:
    """Return the placements of a DTensor, and its mesh dimensions' names if they have some."""
    names = getattr(getattr(tensor, "device_mesh", None), "mesh_dim_names", None)
    return placements_text(tensor), ",".join(names) if names else None
