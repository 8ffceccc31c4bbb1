"""Name of an operator, its floating-point operations and the bytes it moves.

A multiply and an add count as two. The bytes are the least possible: every operand is read once, every result
written once. A convolution whose stride exceeds its kernel skips a part of its input, so that is left out.

The formulas of matmul-like operators are those of torch.utils.flop_counter. The four operators that make up
nearly every step are computed here from their shapes: torch's own way costs 40 us per operator. A few others
are known by what they do to each element of their input:

    layer_norm          mean 1, subtract 1, square and add 2, scale 1; weight 1, bias 1
    rms_norm            square and add 2, scale 1; weight 1
    log_softmax         largest 1, subtract 1, exponential 1, sum 1, subtract 1
    log_softmax, back   sum 1, exponential 1, multiply 1, subtract 1
    embedding, back     add 1, for each element of the gradient that comes in

The backward of a norm counts as twice its forward, as that of a matmul does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


_CONVOLUTIONS: Final = {_aten.convolution: 0, _aten.convolution_backward: 1}
"""Operator -> position of its input; weight, then something, then stride follow."""


@dataclass(frozen=True, slots=True)
class _Operator:
    """Facts about an operator that are looked up once, as torch computes its hash in Python at each
    look-up."""

    func: Any
    """Kept, so that no other one gets its id."""
    text: str
    attention: Callable[..., Any] | None
    left: int | None
    """Position of its left matrix."""
    of_elements: Callable[[Any], int] | None
    convolution: int | None
    """Position of a convolution's input."""


_operators: dict[int, _Operator] = {}
"""Id of an operator -> what is known of it."""


def _looked_up(func: Any) -> _Operator:
    packet = func._overloadpacket
    attention: dict[Any, Callable[..., Any]] = {
        _ATTENTION: sdpa_flop_count,
        _ATTENTION_BACKWARD: sdpa_backward_flop_count,
    }
    facts = _Operator(
        func,
        str(func),
        attention.get(packet),
        _MATRICES.get(packet),
        _OF_ELEMENTS.get(packet),
        _CONVOLUTIONS.get(packet),
    )
    _operators[id(func)] = facts
    return facts


def flops_of(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> int:
    """Return the FLOPs of one call of an operator for which `has_flops` holds."""
    facts = _operators.get(id(func)) or _looked_up(func)
    left = facts.left
    if left is not None:
        # [.., m, k] x [.., k, n]: 2 m k n for each matrix of the batch.
        return 2 * int(args[left].numel()) * int(args[left + 1].shape[-1])
    if facts.attention is not None:
        shapes = [tensor.shape for tensor in args[:4] if isinstance(tensor, torch.Tensor)]
        return int(facts.attention(*shapes))
    if facts.of_elements is not None:
        return facts.of_elements(args)
    if func._overloadpacket is _aten.convolution_backward:
        return _flops_of_convolution_backward(args)
    return int(flop_registry[func._overloadpacket](*args, **kwargs, out_val=result))


def _flops_of_convolution_backward(args: Any) -> int:
    """Return those of the two gradients asked for: each has as many as the convolution itself.

    Torch's own formula takes the weight's gradient of grouped channels for one of all pairs of channels.
    """
    gradient, image, weight, transposed, asked = args[0], args[1], args[2], args[7], args[10]
    images, _, *places = (image if transposed else gradient).shape
    products = sum(bool(one) for one in asked[:2])
    return 2 * int(images) * int(math.prod(places)) * int(weight.numel()) * products


def operands(func: Any) -> slice:
    """Return which of the tensors given to the operator are its data: no bias, no weight of a norm.

    A bias that is zero, as after most initialisations, does not make equal inputs mean less.
    """
    facts = _operators.get(id(func)) or _looked_up(func)
    if facts.of_elements is not None:
        return slice(0, 1)
    left = facts.left or 0
    return slice(left, left + 2)


def masks(func: Any) -> slice:
    """Return which of the tensors given to the operator may hold infinity on purpose, as a mask does.

    Attention has its mask, and tensors made of it, after query, key and value (in backward after a gradient
    too). In baddbmm it is the tensor to which scores are added. All other operators have none.
    """
    packet = func._overloadpacket
    if packet is _aten.baddbmm:
        return slice(0, 1)
    name = func._schema.name
    if "scaled_dot_product" not in name:
        return slice(0, 0)
    return slice(4 if name.endswith("_backward") else 3, None)


def moved_bytes(func: Any, args: Any, given: Iterable[torch.Tensor], made: Iterable[torch.Tensor]) -> int:
    """Return the bytes of one call on tensors `given` that made tensors `made`."""
    moved = sum(map(bytes_of, given)) + sum(map(bytes_of, made))
    place = (_operators.get(id(func)) or _looked_up(func)).convolution
    if place is not None and _skips(args[place + 1].shape[2:], args[place + 3]):
        moved -= bytes_of(args[place])
    return moved


def bytes_of(tensor: torch.Tensor) -> int:
    """Return its bytes in memory: what strides repeat, as in overlapping windows, counts once."""
    if tensor.layout is not torch.strided:
        return 0
    if tensor.is_contiguous():
        return tensor.nbytes
    stride = tensor.stride()
    if len(stride) == 2 and stride[0] == 1 and stride[1] == tensor.shape[0]:
        # A transposed matrix: nothing is repeated.
        return tensor.nbytes
    sizes = list(zip(tensor.shape, stride, strict=True))
    elements = math.prod(size for size, stride in sizes if stride or not size)
    if elements:
        # Windows that overlap: no more elements than lie between the first and the last.
        elements = min(elements, 1 + sum((size - 1) * stride for size, stride in sizes))
    return elements * tensor.element_size()


def _skips(kernel: Any, stride: Any) -> bool:
    steps = list(stride) * (len(kernel) if len(stride) == 1 else 1)
    return any(step > size for step, size in zip(steps, kernel, strict=True))


_SHORT_DTYPES: Final = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
}


def op_text(func: Any) -> str:
    """Return an operator's name, as `aten.mm.default`."""
    return (_operators.get(id(func)) or _looked_up(func)).text


@functools.lru_cache(maxsize=4096)
def _shape_text(dtype: torch.dtype, shape: torch.Size) -> str:
    name = _SHORT_DTYPES.get(dtype, str(dtype).removeprefix("torch."))
    return f"{name}[{','.join(map(str, shape))}]"


def shapes_text(tensors: Sequence[torch.Tensor]) -> str:
    """Return shapes as `f32[64,32] f32[32,16]`."""
    return " ".join(_shape_text(t.dtype, t.shape) for t in tensors)
