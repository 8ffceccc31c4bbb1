"""An operator call as a collective: op, group, bytes, root, tensors.

Three families reach a dispatch mode. Process-group calls and DDP's reducer become `c10d::*`. Functional
collectives, DTensor and compiled graphs call `_c10d_functional::*`. The operators `symm_mem::*` go past the
process group. Each operator has one entry in a table. If one of the first two families has none, the
completeness check reports it as not understood; it is never silently dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

from shardtoll.profiler.live.cause.call import (
    Call,
    Decoder,
    both_ways,
    decoder,
    dtype_of,
    each_rank,
    each_tensor,
    resolve_group,
    tensor_bytes,
)
from shardtoll.profiler.live.cause.symmetric import SYMMETRIC

_NATIVE: Final[dict[str, Decoder]] = {
    "allreduce_": decoder("all_reduce", inputs="tensors", size_of="tensors"),
    "allreduce_coalesced_": decoder("all_reduce", inputs="tensors", size_of="tensors"),
    "allgather_": decoder("all_gather", inputs="input_tensors", size_of="output_tensors"),
    "allgather_coalesced_": decoder("all_gather", inputs="input_list", size_of="output_lists"),
    "_allgather_base_": decoder("all_gather", inputs="input_tensor", size_of="output_tensor"),
    "allgather_into_tensor_coalesced_": decoder("all_gather", inputs="inputs", size_of="outputs"),
    "reduce_scatter_": decoder(
        "reduce_scatter", inputs="input_tensors", size_of="input_tensors", counted=each_rank
    ),
    "_reduce_scatter_base_": decoder("reduce_scatter", inputs="input_tensor", size_of="input_tensor"),
    "reduce_scatter_tensor_coalesced_": decoder(
        "reduce_scatter", inputs="inputs", size_of="inputs", counted=each_tensor
    ),
    "broadcast_": decoder("broadcast", inputs="tensors", size_of="tensors", root="root_rank"),
    "reduce_": decoder("reduce", inputs="tensors", size_of="tensors", root="root_rank"),
    "alltoall_": decoder(
        "all_to_all",
        inputs="input_tensors",
        size_of="input_tensors",
        splits="input_tensors",
        fills="output_tensors",
    ),
    "alltoall_base_": decoder(
        "all_to_all", inputs="input", size_of="input", splits="input_split_sizes", fills="output"
    ),
    # Only the root holds the whole, so the whole is counted from the part that every rank holds.
    "gather_": decoder(
        "gather", inputs="input_tensors", size_of="input_tensors", times_group=True, root="root_rank"
    ),
    "scatter_": decoder(
        "scatter", inputs="input_tensors", size_of="output_tensors", times_group=True, root="root_rank"
    ),
    "send": decoder("send", inputs="tensors", size_of="tensors", root="dst"),
    "recv_": decoder("recv", inputs=None, size_of="tensors", root="src"),
    "recv_any_source_": decoder("recv", inputs=None, size_of="tensors"),
    "barrier": decoder("barrier", inputs=None, size_of=None),
    "monitored_barrier_": decoder("barrier", inputs=None, size_of=None, blocking=True, counted=both_ways),
}

_BY_NAME = "group_name"
_FUNCTIONAL: Final[dict[str, Decoder]] = {
    "all_reduce": decoder("all_reduce", inputs="input", size_of="input", group=_BY_NAME),
    "all_reduce_": decoder("all_reduce", inputs="input", size_of="input", group=_BY_NAME),
    "all_reduce_coalesced": decoder("all_reduce", inputs="inputs", size_of="inputs", group=_BY_NAME),
    "all_reduce_coalesced_": decoder("all_reduce", inputs="inputs", size_of="inputs", group=_BY_NAME),
    "all_gather_into_tensor": decoder(
        "all_gather", inputs="input", size_of="input", times_group=True, group=_BY_NAME
    ),
    "all_gather_into_tensor_out": decoder(
        "all_gather", inputs="input", size_of="input", times_group=True, group=_BY_NAME
    ),
    "all_gather_into_tensor_coalesced": decoder(
        "all_gather", inputs="inputs", size_of="inputs", times_group=True, group=_BY_NAME
    ),
    "reduce_scatter_tensor": decoder("reduce_scatter", inputs="input", size_of="input", group=_BY_NAME),
    "reduce_scatter_tensor_out": decoder("reduce_scatter", inputs="input", size_of="input", group=_BY_NAME),
    "reduce_scatter_tensor_coalesced": decoder(
        "reduce_scatter", inputs="inputs", size_of="inputs", group=_BY_NAME, counted=each_tensor
    ),
    "all_to_all_single": decoder(
        "all_to_all",
        inputs="input",
        size_of="input",
        group=_BY_NAME,
        splits="input_split_sizes",
        fills="output_split_sizes",
    ),
    "broadcast": decoder("broadcast", inputs="input", size_of="input", group=_BY_NAME, root="src"),
    "broadcast_": decoder("broadcast", inputs="input", size_of="input", group=_BY_NAME, root="src"),
    "isend": decoder("send", inputs="tensor", size_of="tensor", group=_BY_NAME, root="dst"),
    "irecv": decoder("recv", inputs=None, size_of="tensor", group=_BY_NAME, root="src"),
}


def _batch(arguments: dict[str, Any]) -> tuple[Call, ...]:
    """Decode a batch of sends and receives: one call each, in the order in which they are issued."""
    group = resolve_group(arguments[_BY_NAME])
    named = zip(arguments["op_list"], arguments["peer_list"], arguments["tensors"], strict=True)
    return tuple(
        Call(
            op=_BATCHED[name],
            group=group,
            message_bytes=tensor_bytes((tensor,)),
            dtype=dtype_of((tensor,)),
            inputs=(tensor,) if name == "isend" else (),
            root=peer,
        )
        for name, peer, tensor in named
    )


_BATCHED: Final = {"isend": "send", "irecv": "recv"}
_FUNCTIONAL["batch_p2p_ops"] = _batch

_DTENSOR: Final[dict[str, Decoder]] = {
    "shard_dim_alltoall": decoder("all_to_all", inputs="input", size_of="input", group=_BY_NAME),
}

DECODERS: Final[dict[str, dict[str, Decoder]]] = {
    "c10d": _NATIVE,
    "_c10d_functional": _FUNCTIONAL,
    "_dtensor": _DTENSOR,
    "symm_mem": SYMMETRIC,
}
"""Operator namespace -> operator name without overload -> decoder."""


def decoder_of(func: Any) -> Decoder | None:
    """Return the decoder of an operator; None if it is no collective we know."""
    names = DECODERS.get(func.namespace)
    return names.get(func._schema.name.split("::")[1]) if names else None


def arguments_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the call's arguments by name, as the operator's schema has them."""
    return {**dict(zip(_argument_names(func), args, strict=False)), **kwargs}


@functools.cache
def _argument_names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


def is_wait(func: Any) -> bool:
    """Whether the operator blocks until a functional collective's result is there."""
    return bool(func._schema.name == "_c10d_functional::wait_tensor")
