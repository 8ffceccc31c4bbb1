"""What an operator call means as a collective: op, group, bytes, root, tensors.

Two families reach a dispatch mode: `c10d::*`, what process-group calls and DDP's reducer become, and
`_c10d_functional::*`, what functional collectives, DTensor and compiled graphs call. Each operator
has one entry in a table; an operator of these families that has none is reported as not understood
by the completeness check, never silently dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist

from shardtoll.ledger.volume import wire_bytes

Tensors: TypeAlias = tuple[torch.Tensor, ...]

_REDUCE_OPS: Final = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
"""c10d's ReduceOp::RedOpType in its own order."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective call, decoded. Tensors are held only until the call has been recorded."""

    op: str
    group: Any
    """The torch ProcessGroup."""
    message_bytes: int | None
    dtype: str | None
    inputs: Tensors
    """Tensors whose bytes this rank contributes; empty where it contributes none."""
    reduce_op: str | None = None
    root: int | None = None
    """Group rank of the root or peer, as torch passes it."""
    blocking: bool = False
    """The call itself returns only when the collective is done."""
    counted: int = 1
    """By how much it makes the group's sequence number grow at most; some of gloo's are several to it."""
    unnumbered: bool = False
    """Ranks count it differently: its own number, and the group's from then on, differ between them."""

    def wire_bytes(self, group_size: int, group_rank: int) -> int | None:
        """Return the bytes this rank must send for the algorithm assumed."""
        return wire_bytes(self.op, self.message_bytes, group_size, is_root=self.root == group_rank)


def tensor_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the summed size of the tensors' elements."""
    return sum(t.numel() * t.element_size() for t in tensors)


def _dtype(tensors: Sequence[torch.Tensor]) -> str | None:
    names = {str(t.dtype).removeprefix("torch.") for t in tensors}
    return names.pop() if len(names) == 1 else None


def resolve_group(value: Any) -> Any:
    """Return the ProcessGroup behind what an operator was passed: a boxed group, its name, or itself."""
    if isinstance(value, str):
        resolve: Any = torch._C._distributed_c10d._resolve_process_group
        return resolve(value)
    if isinstance(value, torch.ScriptObject):
        return dist.ProcessGroup.unbox(value)
    return value


def _reduce_op(value: Any) -> str | None:
    if isinstance(value, str):
        return value.upper()
    # A boxed ReduceOp answers op() with its number; other objects do not have it.
    op: Any = getattr(value, "op", None) if isinstance(value, torch.ScriptObject) else None
    number = op() if op is not None else None
    return _REDUCE_OPS[number] if isinstance(number, int) and 0 <= number < len(_REDUCE_OPS) else None


def _flat(value: Any) -> Tensors:
    if isinstance(value, torch.Tensor):
        return (value,)
    return tuple(t for item in value for t in _flat(item))


Decoder: TypeAlias = Callable[[dict[str, Any]], Call]


def _once(_ranks: int, _tensors: int) -> int:
    return 1


def _each_rank(ranks: int, _tensors: int) -> int:
    """Gloo reduces a list of tensors one by one."""
    return ranks


def _each_tensor(_ranks: int, tensors: int) -> int:
    return max(tensors, 1)


def _both_ways(ranks: int, _tensors: int) -> int:
    """Gloo's monitored barrier sends between rank 0 and every other one, there and back."""
    return max(2 * (ranks - 1), 1)


def _decoder(
    op: str,
    *,
    inputs: str | None,
    size_of: str | None,
    group: str = "process_group",
    times_group: bool = False,
    root: str | None = None,
    blocking: bool = False,
    counted: Callable[[int, int], int] = _once,
) -> Decoder:
    """Make a decoder from argument names.

    `inputs` names the argument this rank contributes, `size_of` the one whose bytes are the message;
    `times_group` multiplies by the group size where the message is the whole and the argument a part.
    `counted` tells the growth of the group's sequence number from the group's size and the tensors sent.
    """

    def decode(arguments: dict[str, Any]) -> Call:
        found = resolve_group(arguments[group])
        sized = _flat(arguments[size_of]) if size_of else ()
        message_bytes = tensor_bytes(sized) if size_of else 0
        return Call(
            op=op,
            group=found,
            message_bytes=message_bytes * (found.size() if times_group else 1),
            dtype=_dtype(sized),
            inputs=_flat(arguments[inputs]) if inputs else (),
            reduce_op=_reduce_op(arguments.get("reduce_op")) if "reduce_op" in arguments else None,
            root=arguments[root] if root else None,
            blocking=blocking,
            counted=counted(found.size(), len(sized)),
            unnumbered=counted is _both_ways,
        )

    return decode


_NATIVE: Final[dict[str, Decoder]] = {
    "allreduce_": _decoder("all_reduce", inputs="tensors", size_of="tensors"),
    "allreduce_coalesced_": _decoder("all_reduce", inputs="tensors", size_of="tensors"),
    "allgather_": _decoder("all_gather", inputs="input_tensors", size_of="output_tensors"),
    "allgather_coalesced_": _decoder("all_gather", inputs="input_list", size_of="output_lists"),
    "_allgather_base_": _decoder("all_gather", inputs="input_tensor", size_of="output_tensor"),
    "allgather_into_tensor_coalesced_": _decoder("all_gather", inputs="inputs", size_of="outputs"),
    "reduce_scatter_": _decoder(
        "reduce_scatter", inputs="input_tensors", size_of="input_tensors", counted=_each_rank
    ),
    "_reduce_scatter_base_": _decoder("reduce_scatter", inputs="input_tensor", size_of="input_tensor"),
    "reduce_scatter_tensor_coalesced_": _decoder(
        "reduce_scatter", inputs="inputs", size_of="inputs", counted=_each_tensor
    ),
    "broadcast_": _decoder("broadcast", inputs="tensors", size_of="tensors", root="root_rank"),
    "reduce_": _decoder("reduce", inputs="tensors", size_of="tensors", root="root_rank"),
    "alltoall_": _decoder("all_to_all", inputs="input_tensors", size_of="input_tensors"),
    "alltoall_base_": _decoder("all_to_all", inputs="input", size_of="input"),
    # Only the root holds the whole, so the whole is counted from the part that every rank holds.
    "gather_": _decoder(
        "gather", inputs="input_tensors", size_of="input_tensors", times_group=True, root="root_rank"
    ),
    "scatter_": _decoder(
        "scatter", inputs="input_tensors", size_of="output_tensors", times_group=True, root="root_rank"
    ),
    "send": _decoder("send", inputs="tensors", size_of="tensors", root="dst"),
    "recv_": _decoder("recv", inputs=None, size_of="tensors", root="src"),
    "recv_any_source_": _decoder("recv", inputs=None, size_of="tensors"),
    "barrier": _decoder("barrier", inputs=None, size_of=None),
    "monitored_barrier_": _decoder("barrier", inputs=None, size_of=None, blocking=True, counted=_both_ways),
}

_BY_NAME = "group_name"
_FUNCTIONAL: Final[dict[str, Decoder]] = {
    "all_reduce": _decoder("all_reduce", inputs="input", size_of="input", group=_BY_NAME),
    "all_reduce_": _decoder("all_reduce", inputs="input", size_of="input", group=_BY_NAME),
    "all_reduce_coalesced": _decoder("all_reduce", inputs="inputs", size_of="inputs", group=_BY_NAME),
    "all_reduce_coalesced_": _decoder("all_reduce", inputs="inputs", size_of="inputs", group=_BY_NAME),
    "all_gather_into_tensor": _decoder(
        "all_gather", inputs="input", size_of="input", times_group=True, group=_BY_NAME
    ),
    "all_gather_into_tensor_out": _decoder(
        "all_gather", inputs="input", size_of="input", times_group=True, group=_BY_NAME
    ),
    "all_gather_into_tensor_coalesced": _decoder(
        "all_gather", inputs="inputs", size_of="inputs", times_group=True, group=_BY_NAME
    ),
    "reduce_scatter_tensor": _decoder("reduce_scatter", inputs="input", size_of="input", group=_BY_NAME),
    "reduce_scatter_tensor_out": _decoder("reduce_scatter", inputs="input", size_of="input", group=_BY_NAME),
    "reduce_scatter_tensor_coalesced": _decoder(
        "reduce_scatter", inputs="inputs", size_of="inputs", group=_BY_NAME, counted=_each_tensor
    ),
    "all_to_all_single": _decoder("all_to_all", inputs="input", size_of="input", group=_BY_NAME),
    "broadcast": _decoder("broadcast", inputs="input", size_of="input", group=_BY_NAME, root="src"),
    "broadcast_": _decoder("broadcast", inputs="input", size_of="input", group=_BY_NAME, root="src"),
    "isend": _decoder("send", inputs="tensor", size_of="tensor", group=_BY_NAME, root="dst"),
    "irecv": _decoder("recv", inputs=None, size_of="tensor", group=_BY_NAME, root="src"),
}

_DTENSOR: Final[dict[str, Decoder]] = {
    "shard_dim_alltoall": _decoder("all_to_all", inputs="input", size_of="input", group=_BY_NAME),
}

DECODERS: Final[dict[str, dict[str, Decoder]]] = {
    "c10d": _NATIVE,
    "_c10d_functional": _FUNCTIONAL,
    "_dtensor": _DTENSOR,
}
"""Operator namespace -> operator name without overload -> decoder."""


def decoder_of(func: Any) -> Decoder | None:
    """Return the decoder of an operator, None where it is no collective we know."""
    names = DECODERS.get(func.namespace)
    return names.get(func._schema.name.split("::")[1]) if names else None


def arguments_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the call's arguments by name, as the operator's schema has them."""
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    named.update(kwargs)
    return named


def is_wait(func: Any) -> bool:
    """Whether the operator blocks until a functional collective's result is there."""
    return bool(func._schema.name == "_c10d_functional::wait_tensor")
