"""Floating-point operations of matmul-like operators: a multiply and an add count as two.

The formulas are those of torch.utils.flop_counter. The four operators that nearly every step consists of
are computed here from their shapes, because torch's own way to call the formulas costs 40 us an operator.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

_aten = torch.ops.aten
_MATRICES: Final = {_aten.mm: 0, _aten.bmm: 0, _aten.addmm: 1, _aten.baddbmm: 1}
"""Operator -> position of its left matrix; the right one follows."""

# torch's own table knows the attention kernels of accelerators only.
_ATTENTION: Final = getattr(_aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_ATTENTION_BACKWARD: Final = getattr(_aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def has_flops(func: Any) -> bool:
    """Whether the operator is one whose FLOPs are counted."""
    packet = func._overloadpacket
    return packet in flop_registry or packet in (_ATTENTION, _ATTENTION_BACKWARD)


def flops_of(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> int:
    """Return the FLOPs of one call of an operator for which `has_flops` holds."""
    packet = func._overloadpacket
    if packet in (_ATTENTION, _ATTENTION_BACKWARD):
        shapes = [tensor.shape for tensor in args[:4] if isinstance(tensor, torch.Tensor)]
        count = sdpa_flop_count if packet is _ATTENTION else sdpa_backward_flop_count
        return int(count(*shapes))
    left = _MATRICES.get(packet)
    if left is None:
        return int(flop_registry[packet](*args, **kwargs, out_val=result))
    # [.., m, k] x [.., k, n]: 2 m k n for each matrix of the batch.
    return 2 * int(args[left].numel()) * int(args[left + 1].shape[-1])
