"""Collectives over symmetric memory: kernels that read and write their peers' memory directly.

They go past the process group, whose sequence number does not grow. Completeness says nothing about them;
only their own operators show that they ran. Each is recorded with the bytes of the collective that it stands
for. Further compute of the fused ones is not recorded here. One-sided puts, gets and signals name no group
and are no collectives.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from shardtoll.profiler.live.cause.call import (
    Call,
    Decoder,
    decoder,
    dtype_of,
    reduce_op_of,
    resolve_group,
    tensor_bytes,
)

_GROUP: Final = "group_name"


def _all_reduce(tensor: str = "input") -> Decoder:
    return decoder("all_reduce", inputs=tensor, size_of=tensor, group=_GROUP)


def _all_gather(tensor: str) -> Decoder:
    return decoder("all_gather", inputs=tensor, size_of=tensor, group=_GROUP, times_group=True)


def _uneven_all_to_all(arguments: dict[str, Any]) -> tuple[Call, ...]:
    """Decode an all_to_all whose splits lie on the device: how much is sent is not known here."""
    tensor = arguments["input"]
    call = Call("all_to_all", resolve_group(arguments[_GROUP]), None, dtype_of((tensor,)), (tensor,))
    return (call,)


def _matmul_reduce_scatter(arguments: dict[str, Any]) -> tuple[Call, ...]:
    """Decode a matmul whose product is reduced and scattered: the product is the message."""
    left, right = arguments["A"], arguments["B"]
    dtype: torch.dtype = arguments.get("out_dtype") or left.dtype
    elements = left.numel() // left.shape[-1] * right.shape[-1]
    call = Call(
        op="reduce_scatter",
        group=resolve_group(arguments[_GROUP]),
        message_bytes=elements * dtype.itemsize,
        dtype=str(dtype).removeprefix("torch."),
        # The product exists nowhere as a whole.
        inputs=(),
        reduce_op=reduce_op_of(arguments["reduce_op"]),
    )
    return (call,)


def _tiles(arguments: dict[str, Any]) -> tuple[Call, ...]:
    """Decode a reduction of several tiles, each to a root of its own: one reduce each."""
    group = resolve_group(arguments[_GROUP])
    reduce_op = reduce_op_of(arguments.get("reduce_op", "sum"))
    named = zip(arguments["in_tiles"], arguments["roots"], strict=True)
    return tuple(
        Call("reduce", group, tensor_bytes((tile,)), dtype_of((tile,)), (tile,), reduce_op, root)
        for tile, root in named
    )


SYMMETRIC: Final[dict[str, Decoder]] = {
    "one_shot_all_reduce": _all_reduce(),
    "one_shot_all_reduce_out": _all_reduce(),
    "one_shot_all_reduce_copy": _all_reduce("local_input"),
    "one_shot_all_reduce_copy_out": _all_reduce("local_input"),
    "two_shot_all_reduce_": _all_reduce(),
    "two_shot_all_reduce_out": _all_reduce(),
    "multimem_all_reduce_": _all_reduce(),
    "multimem_one_shot_all_reduce": _all_reduce(),
    "multimem_one_shot_all_reduce_out": _all_reduce(),
    "multimem_one_shot_reduce_out": decoder(
        "reduce", inputs="input", size_of="input", group=_GROUP, root="root"
    ),
    "multimem_all_gather_out": _all_gather("input"),
    "_low_contention_all_gather": _all_gather("tensor"),
    "_low_contention_reduce_scatter": decoder(
        "reduce_scatter", inputs="tensor", size_of="tensor", group=_GROUP
    ),
    "reduce_scatter_out": decoder("reduce_scatter", inputs="input", size_of="input", group=_GROUP),
    "tile_reduce": decoder("reduce", inputs="in_tile", size_of="in_tile", group=_GROUP, root="root"),
    "multi_root_tile_reduce": _tiles,
    "nccl_reduce_scatter_offset": decoder("reduce_scatter", inputs="input", size_of="input", group=_GROUP),
    "nvshmem_all_to_all": decoder("all_to_all", inputs="input", size_of="input", group=_GROUP),
    "nvshmem_broadcast": decoder("broadcast", inputs="input", size_of="input", group=_GROUP, root="root"),
    "all_to_all_vdev": _uneven_all_to_all,
    "all_to_all_vdev_2d": _uneven_all_to_all,
    "all_to_all_vdev_2d_offset": _uneven_all_to_all,
    "fused_all_gather_matmul": _all_gather("A"),
    "fused_all_gather_scaled_matmul": _all_gather("A"),
    "fused_matmul_reduce_scatter": _matmul_reduce_scatter,
    "fused_scaled_matmul_reduce_scatter": _matmul_reduce_scatter,
}
"""Operator name without overload -> decoder."""
