"""The code of one collective in place of many: each tensor gets what it got alone."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.shared import remedy_code

_IN_PLACE: Final = ("all_reduce", "broadcast", "reduce")
"""Ops whose result comes in the tensor that was sent."""

_REDUCING: Final = ("all_reduce", "reduce", "reduce_scatter")

_BY_RANK: Final = {
    "reduce_scatter": (
        "part = flat.new_empty(flat.numel() // ranks)",
        "parts = part.split([t.numel() // ranks for t in tensors])",
    ),
    "all_to_all": (
        "received = torch.empty_like(flat)",
        "parts = received.view(ranks, -1).split([t.numel() // ranks for t in tensors], 1)  # a row a rank",
    ),
}
"""Op that gives each rank its own part of what is sent -> the lines before and after its call."""


def coalesced(op: str, dim: str | None, source: str | None, reduce_op: str | None = None) -> str:
    """Return the lines; `dim` is the mesh dimension, `source` the user's line, None if unknown.

    In them `tensors` are what was sent one by one, and `parts` what each of them gets.
    """
    here = remedy_code.at(source, "instead of the calls at")
    call = remedy_code.call(op, dim, "flat")
    if op in _REDUCING and reduce_op not in (None, "SUM"):
        call = f"{call[:-1]}, op=dist.ReduceOp.{reduce_op})"
    if op in _BY_RANK:
        before, after = _BY_RANK[op]
        flat = f"flat = torch.cat([t.reshape(ranks, -1) for t in tensors], 1).flatten(){here}"
        return "\n".join((flat, before, call, after))
    flat = f"flat = torch.cat([t.flatten() for t in tensors]){here}"
    if op == "all_gather":
        return "\n".join(
            (
                flat,
                "whole = flat.new_empty(ranks * flat.numel())",
                call,
                "parts = whole.view(ranks, -1).split([t.numel() for t in tensors], 1)  # a row a rank",
            )
        )
    lines = [flat, call]
    if op in _IN_PLACE:
        lines += [
            "for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):",
            "    t.copy_(part.view_as(t))",
        ]
    return "\n".join(lines)
