"""The kinds of operators that have a price. Sizes are those of one GPU, after sharding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Direction = Literal["forward", "backward"]
Kernel = Literal["best", "flash2", "flash1"]
"""Fused attention: the GPU's best (FlashAttention-3 and cuDNN on Hopper), FlashAttention-2, or its first
version and Triton's."""


@dataclass(frozen=True, slots=True)
class Matmul:
    """`batch` products of an m x k and a k x n matrix: 2 m n k operations each."""

    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    """As torch names it; `float8` for every 8-bit float."""
    batch: int = 1
    moved_bytes: float | None = None
    """Bytes that one of a convolution's products reads and writes. Its m x k matrix has each pixel once per
    position of the window, and no kernel reads it like that. None: the bytes of the matrices."""

    @property
    def flops(self) -> float:
        """Operations."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> float:
        """Bytes read and written at least."""
        if self.moved_bytes is not None:
            return self.moved_bytes
        one = self.m * self.k + self.k * self.n
        return self.batch * (one * width(self.dtype) + self.m * self.n * max(2, width(self.dtype)))


@dataclass(frozen=True, slots=True)
class GroupedMatmul:
    """One matmul for each of `groups` experts, `m` rows each on average, in one kernel."""

    groups: int
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"

    @property
    def flops(self) -> float:
        """Operations."""
        return 2.0 * self.groups * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused attention. A causal one counts half of the score matrix (the triangle) only."""

    batch: int
    queries: int
    """Query tokens of one sequence on this GPU."""
    keys: int
    """Key tokens that each sequence sees."""
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str = "bfloat16"
    causal: bool = True
    direction: Direction = "forward"
    kernel: Kernel = "best"

    @property
    def flops(self) -> float:
        """Operations: two matmuls forward, five backward (FlashAttention computes the scores again)."""
        matmuls = 2.0 if self.direction == "forward" else 5.0
        pairs = self.queries * self.keys * (0.5 if self.causal else 1.0)
        return matmuls * 2.0 * self.batch * self.heads * pairs * self.head_dim


@dataclass(frozen=True, slots=True)
class Streamed:
    """An operator that memory bandwidth bounds: elementwise, norm, softmax, optimizer, copy."""

    bytes: float
    """Bytes read plus bytes written."""
    kernels: int = 1


Work: TypeAlias = Matmul | GroupedMatmul | Attention | Streamed

_WIDTHS = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "float4": 0.5}


def width(dtype: str) -> float:
    """Return bytes of one element; 2 for an unknown dtype."""
    return _WIDTHS.get("float8" if dtype.startswith("float8") else dtype, 2)
