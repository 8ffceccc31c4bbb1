"""How operators and the shapes they work on are written; texts are kept, as each step asks for them again."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import torch

_SHORT_DTYPES: Final = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
}


@functools.lru_cache(maxsize=4096)
def op_text(func: Any) -> str:
    """Return an operator's name, as `aten.mm.default`."""
    return str(func)


@functools.lru_cache(maxsize=4096)
def _shape_text(dtype: torch.dtype, shape: torch.Size) -> str:
    name = _SHORT_DTYPES.get(dtype, str(dtype).removeprefix("torch."))
    return f"{name}[{','.join(map(str, shape))}]"


def shapes_text(tensors: Sequence[torch.Tensor]) -> str:
    """Return shapes as `f32[64,32] f32[32,16]`."""
    return " ".join(_shape_text(t.dtype, t.shape) for t in tensors)
