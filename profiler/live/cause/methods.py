"""A call of a `ProcessGroup` method as a collective.

torch.distributed's Python functions end in these methods. They take the tensors in a fixed order; the
reduction, the root and the like come in an options object. As the operators behind them have decoders
already, a method's arguments are only given the operator's names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch.distributed as dist

from shardtoll.profiler.live.cause.call import Call
from shardtoll.profiler.live.cause.decode import DECODERS

MethodDecoder: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], "tuple[Call, ...] | None"]
"""Positional arguments, the group first, and those by keyword -> what is issued; None if unknown."""

_OUT_IN: Final = ("output_tensor", "input_tensor")
_OUTS_INS: Final = ("output_tensors", "input_tensors")
_WHOLES: Final = ("outputs", "inputs")
_SPLIT: Final = ("output", "input", "output_split_sizes", "input_split_sizes")

_METHODS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "_allgather_base": ("_allgather_base_", _OUT_IN),
    "_reduce_scatter_base": ("_reduce_scatter_base_", _OUT_IN),
    "all_gather_single": ("_allgather_base_", _OUT_IN),
    "all_gather_single_coalesced": ("allgather_into_tensor_coalesced_", _WHOLES),
    "all_to_all_single": ("alltoall_base_", _SPLIT),
    "allgather": ("allgather_", _OUTS_INS),
    "allgather_coalesced": ("allgather_coalesced_", ("output_lists", "input_list")),
    "allgather_into_tensor_coalesced": ("allgather_into_tensor_coalesced_", _WHOLES),
    "allreduce": ("allreduce_", ("tensors",)),
    "allreduce_coalesced": ("allreduce_coalesced_", ("tensors",)),
    "alltoall": ("alltoall_", _OUTS_INS),
    "alltoall_base": ("alltoall_base_", _SPLIT),
    "barrier": ("barrier", ()),
    "broadcast": ("broadcast_", ("tensors",)),
    "gather": ("gather_", _OUTS_INS),
    "monitored_barrier": ("monitored_barrier_", ()),
    "recv": ("recv_", ("tensors", "src")),
    "recv_anysource": ("recv_any_source_", ("tensors",)),
    "reduce": ("reduce_", ("tensors",)),
    "reduce_scatter": ("reduce_scatter_", _OUTS_INS),
    "reduce_scatter_single": ("_reduce_scatter_base_", _OUT_IN),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced_", _WHOLES),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced_", _WHOLES),
    "scatter": ("scatter_", _OUTS_INS),
    "send": ("send", ("tensors", "dst")),
}
"""Method -> the c10d operator it becomes, and that operator's names for the arguments after the group."""

METHODS: Final = tuple(_METHODS)
"""Methods that issue a collective in some version of torch."""


_ROOTED: Final = ("broadcast_", "reduce_", "gather_", "scatter_")
"""Operators with a root, which the methods' short forms take as a bare number."""


def _said(extra: Any, arguments: dict[str, Any], *, rooted: bool) -> None:
    """Take over what an options object, or the bare argument in its place, says."""
    op = getattr(extra, "reduceOp", extra if isinstance(extra, dist.ReduceOp) else None)
    if op is not None:
        arguments["reduce_op"] = str(getattr(op, "op", op)).rpartition(".")[2]
    root = extra if rooted and type(extra) is int else getattr(extra, "rootRank", None)
    if root is not None:
        arguments["root_rank"] = root


def method_decoder(name: str) -> MethodDecoder:
    """Return the decoder of a method; KeyError for one that issues no collective."""
    operator, names = _METHODS[name]
    decode = DECODERS["c10d"][operator]
    rooted = operator in _ROOTED
    reduces = operator.startswith(("allreduce", "reduce", "_reduce"))

    def decoded(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Call, ...] | None:
        arguments: dict[str, Any] = dict(zip(names, args[1:], strict=False))
        if len(arguments) < len(names):
            # By keyword, in names of torch's own that differ from version to version.
            return None
        arguments["process_group"] = args[0]
        if reduces:
            arguments["reduce_op"] = "SUM"
        for extra in (*args[1 + len(names) :], *kwargs.values()):
            _said(extra, arguments, rooted=rooted)
        if rooted:
            arguments.setdefault("root_rank", 0)
        return decode(arguments)

    return decoded
