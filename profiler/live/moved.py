"""The least bytes that an operator with FLOPs moves: every operand read once, every result written once.

A convolution whose stride exceeds its kernel skips a part of its input: that counts without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import torch

_aten = torch.ops.aten
_CONVOLUTIONS: Final = {_aten.convolution: 0, _aten.convolution_backward: 1}
"""Operator -> position of its input; weight, then something, then stride follow."""


def moved_bytes(func: Any, args: Any, given: Iterable[torch.Tensor], made: Iterable[torch.Tensor]) -> int:
    """Return the bytes of one call on tensors `given` that made tensors `made`."""
    moved = sum(map(bytes_of, given)) + sum(map(bytes_of, made))
    place = _CONVOLUTIONS.get(func._overloadpacket)
    if place is not None and _skips(args[place + 1].shape[2:], args[place + 3]):
        moved -= bytes_of(args[place])
    return moved


def bytes_of(tensor: torch.Tensor) -> int:
    """Return its bytes in memory: what strides repeat, as in overlapping windows, counts once."""
    if tensor.layout is not torch.strided:
        return 0
    if tensor.is_contiguous():
        return tensor.nbytes
    sizes = list(zip(tensor.shape, tensor.stride(), strict=True))
    elements = math.prod(size for size, stride in sizes if stride or not size)
    if elements:
        # Windows that overlap: no more elements than lie between the first and the last.
        elements = min(elements, 1 + sum((size - 1) * stride for size, stride in sizes))
    return elements * tensor.element_size()


def _skips(kernel: Any, stride: Any) -> bool:
    steps = list(stride) * (len(kernel) if len(stride) == 1 else 1)
    return any(step > size for step, size in zip(steps, kernel, strict=True))
