"""FLOPs of an operator and the least bytes it must move, from its name and inputs as a trace has them.

FLOPs (a multiply and an add are two) follow torch.utils.flop_counter. A matmul [m,k] x [k,n] does 2 m k n. A
convolution does 2 x batch x output positions x elements of the weight, its backward as much for each gradient
asked for. Attention does 4 b h sq sk d, and its backward 2.5 times that. A causal mask is not taken off.

Bytes count every operand once as read, and the known writes. These are the results of matmuls, convolutions,
attention, norms and softmax, and of operators that work in place. Some operators may read only a part of an
operand: gathers, indexing, pooling, a convolution whose stride exceeds its kernel. They count without it, or
not at all; so do results of unknown size. The bytes are a lower bound for data that lies in memory, not in a
cache.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from shardtoll.profiler.traces.file.op_shapes import Inputs, Operand

_MATRICES: Final = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::_scaled_mm": 0,
    "aten::addmm": 1,
    "aten::addmm_": 1,
    "aten::_addmm_activation": 1,
    "aten::baddbmm": 1,
    "aten::baddbmm_": 1,
}
"""Operator -> position of its left matrix; the right one follows."""

_CONVOLUTIONS: Final = {
    "aten::cudnn_convolution": (2, 3, 4),
    "aten::cudnn_convolution_relu": (4, 3, 5),
    "aten::miopen_convolution": (3, 4, 5),
    "aten::mkldnn_convolution": (3, 4, 5),
}
"""Operator -> positions of padding, stride and dilation."""
_CONVOLUTION_BACKWARD: Final = "aten::convolution_backward"

_ATTENTION: Final = re.compile(
    r"^aten::(_scaled_dot_product_(flash|efficient|cudnn)_attention|_(flash|efficient|cudnn)_attention_forward)"
    r"$"
)
_ATTENTION_BACKWARD: Final = re.compile(
    r"^aten::(_scaled_dot_product_(flash|efficient|cudnn)_attention_backward"
    r"|_(flash|efficient|cudnn)_attention_backward)$"
)

_READS_PARTLY: Final = re.compile(
    r"embedding|index|gather|scatter|take|select|nll_loss|cross_entropy|grid|roi|interpolate|upsample|pool"
    r"|fold|im2col|col2im|multinomial|bucketize|searchsorted|hist|bincount|put|slice|narrow|sparse|nested"
    r"|triu|tril|diag|jagged|segment|unique|convolution|attention|rnn|grouped|resize|empty|as_strided"
)
_ONLY_WRITES: Final = re.compile(
    r"^aten::(fill|zero|normal|uniform|random|exponential|bernoulli|geometric|cauchy|log_normal)_$"
)
_WRITES_ALIKE: Final = re.compile(
    r"^aten::(_?(native|cudnn|miopen)_(batch|layer|group)_norm|_batch_norm_with_update|_fused_rms_norm"
    r"|_softmax|_log_softmax)$"
)
"""Operators whose result is as large as their first operand, and not among their inputs. Their backwards
write as much only if that gradient is asked for, so those count without it."""
_COPY: Final = "aten::copy_"


class OpWork(Struct, frozen=True):
    """Work of one call; None if unknown."""

    flops: int | None
    moved_bytes: int | None


NOTHING_KNOWN: Final = OpWork(None, None)


def has_rule(op: str) -> bool:
    """Whether some of the operator's work can be computed from its inputs."""
    return op.startswith("aten::")


def needs_numbers(op: str) -> bool:
    """Whether plain numbers, as strides and paddings, are part of what distinguishes it."""
    return op in _CONVOLUTIONS or op == _CONVOLUTION_BACKWARD


def work_of(op: str, inputs: Inputs) -> OpWork:
    """Return the work of one call."""
    left = _MATRICES.get(op)
    if left is not None:
        return _matmul(inputs, left)
    if op in _CONVOLUTIONS:
        return _convolution(inputs, *_CONVOLUTIONS[op])
    if op == _CONVOLUTION_BACKWARD:
        return _convolution_backward(inputs)
    for pattern, attend in _ATTEND:
        if pattern.search(op):
            return attend(op, inputs)
    return OpWork(None, _element_bytes(op, inputs))


def _matmul(inputs: Inputs, left: int) -> OpWork:
    a, b = inputs.operand(left), inputs.operand(left + 1)
    if a is None or b is None:
        return NOTHING_KNOWN
    if len(a.shape) < 2 or len(a.shape) != len(b.shape) or a.shape[-1] != b.shape[-2]:
        return NOTHING_KNOWN
    elements = math.prod(a.shape[:-1]) * b.shape[-1]
    flops = 2 * elements * a.shape[-1]
    # The result of a scaled product may be of another type than its operands: one byte at least.
    written = elements * (a.size if a.size > 1 else 1)
    return OpWork(flops, a.bytes + b.bytes + written)


def _convolution(inputs: Inputs, at_padding: int, at_stride: int, at_dilation: int) -> OpWork:
    given, weight = inputs.operand(0), inputs.operand(1)
    lists = [inputs.numbers(place) for place in (at_padding, at_stride, at_dilation)]
    if given is None or weight is None or len(given.shape) != len(weight.shape) or len(given.shape) < 3:
        return NOTHING_KNOWN
    size = len(given.shape) - 2
    padding, stride, dilation = (_spread(values, size) for values in lists)
    if padding is None or stride is None or dilation is None or min(stride) < 1:
        return NOTHING_KNOWN
    places = [
        (length + 2 * pad - far * (kernel - 1) - 1) // step + 1
        for length, kernel, pad, step, far in zip(
            given.shape[2:], weight.shape[2:], padding, stride, dilation, strict=True
        )
    ]
    if min(places) < 1:
        return NOTHING_KNOWN
    positions = given.shape[0] * math.prod(places)
    read = given.bytes if _reads_all(weight, stride) else 0
    written = positions * weight.shape[0] * given.size
    return OpWork(2 * positions * math.prod(weight.shape), read + weight.bytes + written)


def _convolution_backward(inputs: Inputs) -> OpWork:
    """Return its work. Its arguments are the result's gradient, input, weight, sizes of the bias, stride,
    padding, dilation, transposed, output padding, groups and which gradients are asked for."""
    gradient, given, weight = (inputs.operand(place) for place in range(3))
    if gradient is None or given is None or weight is None or len(given.shape) < 3:
        return NOTHING_KNOWN
    mask = inputs.concrete[10] if len(inputs.concrete) > 10 else ""
    asked = [word.strip() == "True" for word in mask.strip("[]").split(",")]
    transposed = inputs.truth(7)
    if len(asked) != 3 or transposed is None or not gradient.shape:
        return NOTHING_KNOWN
    over = given if transposed else gradient
    positions = given.shape[0] * math.prod(over.shape[2:])
    stride = _spread(inputs.numbers(4), len(given.shape) - 2)
    moved = gradient.bytes
    if asked[0]:
        moved += weight.bytes + given.bytes
    if asked[1]:
        read = given.bytes if stride is not None and _reads_all(weight, stride) else 0
        moved += weight.bytes + read
    return OpWork(2 * positions * math.prod(weight.shape) * sum(asked[:2]), moved)


def _spread(values: tuple[int, ...] | None, size: int) -> list[int] | None:
    if values is None or len(values) not in (1, size):
        return None
    return list(values) * (size if len(values) == 1 else 1)


def _reads_all(weight: Operand, stride: list[int]) -> bool:
    return all(step <= kernel for step, kernel in zip(stride, weight.shape[2:], strict=True))


def _attention(op: str, inputs: Inputs) -> OpWork:
    flops = _attention_flops(op, inputs.operands[:3])
    query = inputs.operand(0)
    moved = _sum_of(inputs.tensors)
    # The result is as large as the query if values are as wide as keys.
    return OpWork(flops, None if moved is None or query is None else moved + query.bytes)


def _attention_backward(op: str, inputs: Inputs) -> OpWork:
    """Five products instead of two: torch counts 2.5 times the forward."""
    forward = _attention_flops(op, inputs.operands[1:4])
    return OpWork(None if forward is None else forward * 5 // 2, _sum_of(inputs.tensors))


def _attention_flops(op: str, given: tuple[Operand | None, ...]) -> int | None:
    """Return 2 b h sq sk (dk + dv); `_scaled_dot_product_*` and cuDNN: [b, h, s, d], others [b, s, h, d]."""
    if len(given) < 3 or any(each is None or len(each.shape) != 4 for each in given):
        return None
    query, key, value = (each.shape for each in given if each is not None)
    head, place = (1, 2) if "scaled_dot_product" in op or "cudnn" in op else (2, 1)
    return 2 * query[0] * query[head] * query[place] * key[place] * (query[3] + value[3])


_ATTEND: Final[tuple[tuple[re.Pattern[str], Callable[[str, Inputs], OpWork]], ...]] = (
    (_ATTENTION, _attention),
    (_ATTENTION_BACKWARD, _attention_backward),
)


def _element_bytes(op: str, inputs: Inputs) -> int | None:
    """Return the bytes of an operator that goes over all its operands."""
    if _READS_PARTLY.search(op):
        return None
    moved = _sum_of(inputs.tensors)
    first = inputs.operand(0)
    in_place = op.endswith("_") and op != _COPY and not _ONLY_WRITES.search(op)
    if moved is None or not (in_place or _WRITES_ALIKE.search(op)) or first is None:
        return moved
    return moved + first.bytes


def _sum_of(operands: list[Operand]) -> int | None:
    return sum(each.bytes for each in operands) if operands else None
