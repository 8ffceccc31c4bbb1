"""Rows of values whose numbers are still to come."""

from __future__ import annotations

import torch

from shardtoll.ledger.records.value import Value
from shardtoll.profiler.live.cause.positions import layout_of


def blank(
    tensor: torch.Tensor,
    local: torch.Tensor,
    rank: int,
    kind: str,
    name: str,
    *,
    step: int | None = None,
    nth: int = 0,
    may_leave_out: bool | None = None,
) -> Value:
    """Return the row of `local`, this rank's part of `tensor`, without fingerprint, square and sketch."""
    placements, mesh_dims = layout_of(tensor)
    return Value(
        step=step,
        rank=rank,
        kind=kind,
        name=name,
        nth=nth,
        dtype=str(local.dtype).removeprefix("torch."),
        shape=str(list(local.shape)),
        placements=placements,
        mesh_dims=mesh_dims,
        numel=local.numel(),
        hash=None,
        constant=False,
        square=None,
        may_leave_out=may_leave_out,
    )
