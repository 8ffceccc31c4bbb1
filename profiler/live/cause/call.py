"""One collective call, decoded, and how a decoder is made from the names of an operator's arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist

from shardtoll.ledger.records.volume import wire_bytes

Tensors: TypeAlias = tuple[torch.Tensor, ...]

_REDUCE_OPS: Final = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
"""c10d's ReduceOp::RedOpType in its own order."""


UNDECODED: Final = (TypeError, ValueError, AttributeError, LookupError, RuntimeError)
"""Exceptions of a decoder for invalid arguments: torch, or the group, will refuse the call itself.

If it does not, the call went unrecorded, and shows as a difference to the group's own count.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective call, decoded. Tensors are held only until the call has been recorded."""

    op: str
    group: Any
    """The torch ProcessGroup."""
    message_bytes: int | None
    dtype: str | None
    inputs: Tensors
    """Tensors whose bytes this rank contributes; empty if it contributes none."""
    reduce_op: str | None = None
    root: int | None = None
    """Group rank of the root or peer, as torch passes it."""
    blocking: bool = False
    """The call itself returns only when the collective is done."""
    counted: int = 1
    """By how much it makes the group's sequence number grow at most; some of gloo's are several to it."""
    unnumbered: bool = False
    """Ranks count it differently: its own number, and the group's from then on, differ between them."""
    sent_bytes: tuple[int, ...] | None = None
    """Bytes for each rank of the group in an all_to_all, itself included; None if unknown."""
    received_bytes: int | None = None
    """Bytes that this rank gets in an all_to_all, from itself included; None for all else, and if unknown."""

    def wire_bytes(self, group_size: int, group_rank: int) -> int | None:
        """Return the bytes this rank must send for the algorithm assumed."""
        if self.sent_bytes is not None and 0 <= group_rank < len(self.sent_bytes):
            return sum(self.sent_bytes) - self.sent_bytes[group_rank]
        return wire_bytes(self.op, self.message_bytes, group_size, is_root=self.root == group_rank)


def tensor_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the summed size of the tensors' elements; of sparse ones that of their indices and values."""
    return sum(
        t.numel() * t.element_size() if t.layout is torch.strided else _stored_bytes(t) for t in tensors
    )


_PARTS: Final[dict[torch.layout, tuple[str, ...]]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""Methods that return what a sparse tensor stores, as it lies."""


def _stored_bytes(tensor: torch.Tensor) -> int:
    parts = _PARTS.get(tensor.layout)
    if parts is None:
        return tensor.numel() * tensor.element_size()
    whole = tensor.detach()
    return tensor_bytes([getattr(whole, part)() for part in parts])


def dtype_of(tensors: Sequence[torch.Tensor]) -> str | None:
    """Return the one dtype of the tensors; None if there are several or no tensors."""
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


def reduce_op_of(value: Any) -> str | None:
    """Return how an operator's argument says to reduce: `SUM`, `AVG`, ...; None if it does not say."""
    if isinstance(value, str):
        return value.upper()
    # A boxed ReduceOp answers op() with its number; other objects do not have it.
    op: Any = getattr(value, "op", None) if isinstance(value, torch.ScriptObject) else None
    number = op() if op is not None else None
    return _REDUCE_OPS[number] if isinstance(number, int) and 0 <= number < len(_REDUCE_OPS) else None


def flat(value: Any) -> Tensors:
    """Return the tensors of a tensor, a list of tensors, or a list of lists; TypeError for anything else."""
    if isinstance(value, torch.Tensor):
        return (value,)
    if not isinstance(value, (list, tuple)):
        # A generator too: what goes through it first leaves nothing for the call itself.
        raise TypeError(f"no tensors: {type(value).__name__}")
    return tuple(t for item in value for t in flat(item))


Decoder: TypeAlias = Callable[[dict[str, Any]], tuple[Call, ...]]
"""Arguments by name -> the collectives the operator issues, in order: one, except for batches."""


def _sent_bytes(tensors: Tensors, rows: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the bytes for each rank: of `rows` of the one tensor, or of a list with a tensor for each."""
    if len(tensors) != 1:
        return tuple(tensor_bytes((tensor,)) for tensor in tensors)
    (whole,) = tensors
    if not rows or whole.dim() == 0:
        return None
    row_bytes = tensor_bytes((whole,)) // max(whole.shape[0], 1)
    return tuple(int(count) * row_bytes for count in rows)


def _received_bytes(tensors: Tensors, filled: Any) -> int:
    """Return the bytes received: those of tensors to fill, or of the given number of rows of the one tensor.

    Without these numbers it is as many rows as are sent.
    """
    if isinstance(filled, torch.Tensor) or (filled and isinstance(filled[0], torch.Tensor)):
        return tensor_bytes(flat(filled))
    sent = tensor_bytes(tensors)
    if not filled or len(tensors) != 1 or tensors[0].dim() == 0:
        return sent
    (whole,) = tensors
    row_bytes = whole.element_size() * math.prod(whole.shape[1:])
    return sum(map(int, filled)) * row_bytes


def _once(_ranks: int, _tensors: int) -> int:
    return 1


def each_rank(ranks: int, _tensors: int) -> int:
    """Count a call once per rank: gloo reduces a list of tensors one by one."""
    return ranks


def each_tensor(_ranks: int, tensors: int) -> int:
    """Count a call once a tensor."""
    return max(tensors, 1)


def both_ways(ranks: int, _tensors: int) -> int:
    """Count a call as gloo's monitored barrier counts: rank 0 sends to all others, and they back."""
    return max(2 * (ranks - 1), 1)


def decoder(
    op: str,
    *,
    inputs: str | None,
    size_of: str | None,
    group: str = "process_group",
    times_group: bool = False,
    root: str | None = None,
    blocking: bool = False,
    counted: Callable[[int, int], int] = _once,
    splits: str | None = None,
    fills: str | None = None,
) -> Decoder:
    """Make a decoder from argument names.

    `inputs` names the argument this rank contributes, `size_of` the one whose bytes are the message.
    `times_group` multiplies by the group size if the message is the whole and the argument a part. `counted`
    returns the growth of the group's sequence number from the group's size and the tensors sent. `splits`
    names the argument with the rows for each rank, an empty one if all get equally many. `fills` names that
    with what each rank gets, rows or tensors.
    """

    def decode(arguments: dict[str, Any]) -> tuple[Call, ...]:
        issuing = resolve_group(arguments[group])
        sized = flat(arguments[size_of]) if size_of else ()
        message_bytes = tensor_bytes(sized) if size_of else 0
        call = Call(
            op=op,
            group=issuing,
            message_bytes=message_bytes * (issuing.size() if times_group else 1),
            dtype=dtype_of(sized),
            inputs=flat(arguments[inputs]) if inputs else (),
            reduce_op=reduce_op_of(arguments.get("reduce_op")) if "reduce_op" in arguments else None,
            root=arguments[root] if root else None,
            blocking=blocking,
            counted=counted(issuing.size(), len(sized)),
            unnumbered=counted is both_ways,
            sent_bytes=_sent_bytes(sized, arguments.get(splits)) if splits else None,
            received_bytes=_received_bytes(sized, arguments.get(fills)) if fills else None,
        )
        return (call,)

    return decode


_NO_DISPATCH: Final = (None, torch._C._disabled_torch_dispatch_impl, torch.Tensor.__torch_dispatch__)


def is_ordinary(kind: type) -> bool:
    """Whether tensors of this type are ordinary ones."""
    return getattr(kind, "__torch_dispatch__", None) in _NO_DISPATCH
