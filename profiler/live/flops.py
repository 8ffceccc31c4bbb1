"""Floating-point operations of an operator: a multiply and an add count as two.

The formulas of matmul-like operators are those of torch.utils.flop_counter. The four operators that nearly
every step consists of are computed here from their shapes, because torch's own way to call the formulas costs
40 us an operator. A few others are known by what they do to each element of their input:

    layer_norm          mean 1, subtract 1, square and add 2, scale 1; weight 1, bias 1
    rms_norm            square and add 2, scale 1; weight 1
    log_softmax         largest 1, subtract 1, exponential 1, sum 1, subtract 1
    log_softmax, back   sum 1, exponential 1, multiply 1, subtract 1
    embedding, back     add 1, for each element of the gradient that comes in

The backward of a norm counts as twice its forward, as that of a matmul does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

_aten = torch.ops.aten
_MATRICES: Final = {_aten.mm: 0, _aten.bmm: 0, _aten.addmm: 1, _aten.baddbmm: 1}
"""Operator -> position of its left matrix; the right one follows."""

# torch's own table knows the attention kernels of accelerators only.
_ATTENTION: Final = getattr(_aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_ATTENTION_BACKWARD: Final = getattr(_aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def _given(args: Any, place: int) -> bool:
    return len(args) > place and args[place] is not None


def _layer_norm(args: Any) -> int:
    return int(args[0].numel()) * (5 + _given(args, 2) + _given(args, 3))


def _layer_norm_backward(args: Any) -> int:
    return 2 * int(args[0].numel()) * (5 + _given(args, 5) + _given(args, 6))


def _rms_norm(args: Any) -> int:
    return int(args[0].numel()) * (3 + _given(args, 2))


def _rms_norm_backward(args: Any) -> int:
    return 2 * int(args[0].numel()) * (3 + _given(args, 4))


_OF_ELEMENTS: Final[dict[Any, Callable[[Any], int]]] = {
    packet: count
    for name, count in (
        ("native_layer_norm", _layer_norm),
        ("native_layer_norm_backward", _layer_norm_backward),
        ("_fused_rms_norm", _rms_norm),
        ("_fused_rms_norm_backward", _rms_norm_backward),
        ("_log_softmax", lambda args: 5 * int(args[0].numel())),
        ("_log_softmax_backward_data", lambda args: 4 * int(args[0].numel())),
        ("embedding_dense_backward", lambda args: int(args[0].numel())),
    )
    if (packet := getattr(_aten, name, None)) is not None
}
"""Operator -> its FLOPs, given its arguments."""


def has_flops(func: Any) -> bool:
    """Whether the operator is one whose FLOPs are counted."""
    packet = func._overloadpacket
    return packet in flop_registry or packet in _OF_ELEMENTS or packet in (_ATTENTION, _ATTENTION_BACKWARD)


def flops_of(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> int:
    """Return the FLOPs of one call of an operator for which `has_flops` holds."""
    packet = func._overloadpacket
    if packet in (_ATTENTION, _ATTENTION_BACKWARD):
        shapes = [tensor.shape for tensor in args[:4] if isinstance(tensor, torch.Tensor)]
        count = sdpa_flop_count if packet is _ATTENTION else sdpa_backward_flop_count
        return int(count(*shapes))
    left = _MATRICES.get(packet)
    if left is not None:
        # [.., m, k] x [.., k, n]: 2 m k n for each matrix of the batch.
        return 2 * int(args[left].numel()) * int(args[left + 1].shape[-1])
    of_elements = _OF_ELEMENTS.get(packet)
    if of_elements is not None:
        return of_elements(args)
    return int(flop_registry[packet](*args, **kwargs, out_val=result))


def operands(func: Any) -> slice:
    """Return which of the tensors given to the operator are its data: no bias, no weight of a norm.

    A bias that is zero, as after most initialisations, does not make equal inputs mean less.
    """
    packet = func._overloadpacket
    if packet in _OF_ELEMENTS:
        return slice(0, 1)
    left = _MATRICES.get(packet, 0)
    return slice(left, left + 2)
