"""Kind of an operator's work, with the dimensions that a price asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from shardtoll.profiler.dryrun.device.formats import dtype_text, multiplied
from shardtoll.profiler.live.cause.decode import arguments_of
from shardtoll.profiler.live.values.operators import bytes_of, flops_of, has_flops

_MATRICES: Final[dict[str, tuple[str, str]]] = {
    "aten::mm": ("self", "mat2"),
    "aten::addmm": ("mat1", "mat2"),
    "aten::bmm": ("self", "mat2"),
    "aten::baddbmm": ("batch1", "batch2"),
    "aten::_scaled_mm": ("self", "mat2"),
    "aten::_int_mm": ("self", "mat2"),
}
"""Operator -> names of its two matrices."""
_GROUPED: Final = ("aten::_grouped_mm", "aten::_scaled_grouped_mm")
_CONVOLUTIONS: Final = ("aten::convolution", "aten::convolution_backward")
_READS_ROWS: Final = {
    "aten::embedding": "indices",
    "aten::index_select": "index",
    "aten::gather": "index",
    "aten::index": None,
    "aten::take": None,
}
"""Operators that read only the result's part of their first tensor."""
_COPIES: Final = (
    *("aten::clone", "aten::copy_", "aten::_to_copy", "aten::cat", "aten::stack", "aten::_foreach_copy_"),
    *(
        "aten::split_with_sizes_copy",
        "fsdp::split_with_sizes_copy",
        "fsdp::all_gather_copy_in",
        "fsdp::chunk_cat",
    ),
    *("aten::zero_", "aten::fill_", "aten::_foreach_zero_", "aten::constant_pad_nd", "aten::repeat"),
)
_SETS: Final = (
    "aten::zero_",
    "aten::fill_",
    "aten::_foreach_zero_",
    "aten::zeros",
    "aten::full",
    "aten::ones",
)
"""Operators that read nothing."""


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments or results, lists looked through."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (list, tuple)):
        return []
    made: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            made.append(value)
        elif isinstance(value, (list, tuple)):
            made += tensors_in(value)
    return made


class Work:
    """The columns of a dry operator that its call gives."""

    def __init__(
        self, func: Any, args: Any, kwargs: dict[str, Any], result: Any, *, has_cudnn: bool = True
    ) -> None:
        self._has_cudnn = has_cudnn
        self.name: str = func._schema.name
        self.given = tensors_in(args) + tensors_in(kwargs)
        self.made = tensors_in(result)
        self.columns: dict[str, Any] = {}
        self.flops = 0
        self.kind = "copy" if self.name in _COPIES else "elementwise"
        self.read_bytes, self.written_bytes = self._bytes()
        first = self.made[0] if self.made else self.given[0] if self.given else None
        self.dtype = None if first is None else dtype_text(first)
        describe = self._describer()
        if describe is not None:
            describe(arguments_of(func, args, kwargs))
        if not self.flops and has_flops(func) and not self.columns.get("groups"):
            self.flops = flops_of(func, args, kwargs, result)
        self.elements = max((tensor.numel() for tensor in self.made), default=0)
        if not self.made or func._schema.is_mutable:
            self.elements = max(self.elements, sum(tensor.numel() for tensor in self.given[:1]))

    def _describer(self) -> Callable[[dict[str, Any]], None] | None:
        if self.name in _MATRICES:
            return self._matrices
        if self.name in _GROUPED:
            return self._grouped
        if self.name in _CONVOLUTIONS:
            return self._convolution
        if "_attention" in self.name and ("scaled_dot_product" in self.name or "flash" in self.name):
            return self._attention
        return None

    def _bytes(self) -> tuple[int, int]:
        made = sum(bytes_of(tensor) for tensor in self.made)
        if self.name in _SETS:
            return 0, made or sum(bytes_of(tensor) for tensor in self.given)
        if self.name in _READS_ROWS:
            return made + sum(bytes_of(tensor) for tensor in self.given[1:]), made
        read = sum(bytes_of(tensor) for tensor in self.given)
        if self.name in ("aten::copy_", "aten::_foreach_copy_"):
            half = len(self.given) // 2
            return sum(map(bytes_of, self.given[half:])), sum(map(bytes_of, self.given[:half]))
        if not self.made and self.given:
            # In place over lists: the written part belongs to the parts read; the first list, as a rule.
            made = read
        return read, made

    def _matrices(self, arguments: dict[str, Any]) -> None:
        left, right = (arguments[name] for name in _MATRICES[self.name])
        self.kind = "gemm"
        self.dtype = multiplied(left)
        self.columns |= {
            "batch": left.shape[0] if left.dim() == 3 else 1,
            "m": left.shape[-2],
            "n": right.shape[-1],
            "k": left.shape[-1],
        }
        batch = self.columns["batch"]
        self.flops = 2 * batch * left.shape[-2] * left.shape[-1] * right.shape[-1]

    def _grouped(self, _: dict[str, Any]) -> None:
        left, right = self.given[0], self.given[1]
        self.kind = "grouped_gemm"
        self.dtype = dtype_text(left)
        groups = right.shape[0] if right.dim() == 3 else left.shape[0] if left.dim() == 3 else 0
        if not groups:
            # Both flat: the result has one matrix for each group.
            groups = self.made[0].shape[0]
        rows = math.prod(left.shape[:-1])
        self.columns |= {"groups": groups, "m": rows, "n": right.shape[-1], "k": left.shape[-1], "batch": 1}
        self.flops = 2 * rows * left.shape[-1] * right.shape[-1]

    def _convolution(self, arguments: dict[str, Any]) -> None:
        weight = arguments["weight"]
        transposed, groups = bool(arguments.get("transposed")), int(arguments.get("groups") or 1)
        backward = self.name.endswith("backward")
        image = arguments["grad_output"] if backward else self.made[0]
        if transposed:
            image = arguments["input"]
        self.kind = "gemm"
        self.dtype = multiplied(weight, convolution=True) if self._has_cudnn else dtype_text(weight)
        self.columns |= {
            "batch": groups,
            "m": image.shape[0] * math.prod(image.shape[2:]),
            "n": max(weight.shape[0] // groups, 1),
            "k": math.prod(weight.shape[1:]),
        }

    def _attention(self, arguments: dict[str, Any]) -> None:
        query, key = arguments.get("query"), arguments.get("key")
        if query is None or key is None or query.dim() != 4:
            return
        value = arguments.get("value", key)
        backward = self.name.endswith("_backward")
        causal = bool(arguments.get("is_causal", False))
        batch, heads, seq_q, head_dim = query.shape
        kv_heads, seq_kv, value_dim = key.shape[1], key.shape[2], value.shape[-1]
        self.kind = "attention"
        self.dtype = dtype_text(query)
        self.columns |= {
            "batch": batch,
            "seq_q": seq_q,
            "seq_kv": seq_kv,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "causal": causal,
            "backward": backward,
        }
        scores = causal_scores(seq_q, seq_kv) if causal else seq_q * seq_kv
        # Forward: QK^T and PV. Backward: scores again, then dV, dP, dQ and dK.
        products = (3 * head_dim + 2 * value_dim) if backward else head_dim + value_dim
        self.flops = 2 * batch * heads * scores * products


def causal_scores(seq_q: int, seq_kv: int) -> int:
    """Return how many scores a causal mask leaves: of query i those of keys 0 to i, from the upper left."""
    whole = min(seq_q, seq_kv)
    return whole * (whole + 1) // 2 + max(seq_q - seq_kv, 0) * seq_kv


_FREE: Final = (
    *("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"),
    *("aten::empty_permuted", "aten::resize_", "aten::set_", "aten::lift_fresh", "aten::detach_"),
    *("aten::_local_scalar_dense", "aten::record_stream", "aten::is_pinned", "aten::_pin_memory"),
    *("aten::squeeze_", "aten::unsqueeze_", "aten::t_", "aten::transpose_", "aten::as_strided_"),
)
"""Operators that launch no kernel, though they make a storage or change a tensor."""


def launches(func: Any) -> bool | None:
    """Whether the operator launches a kernel; None: if it makes a storage."""
    if func._schema.name in _FREE:
        return False
    return True if func._schema.is_mutable else None
