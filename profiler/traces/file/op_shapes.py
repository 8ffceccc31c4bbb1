"""The inputs of an operator as a trace records them: types, shapes, strides, and plain numbers."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
from msgspec import Struct

MOST_ELEMENTS: Final = 2**50
"""A tensor of more is a damaged number."""
_MOST_INPUTS: Final = 4096
_MOST_DIMENSIONS: Final = 64
_MOST_TEXT: Final = 400

_TYPES: Final = {
    "float": ("f32", 4),
    "double": ("f64", 8),
    "half": ("f16", 2),
    "bfloat16": ("bf16", 2),
    "float8_e4m3fn": ("float8_e4m3fn", 1),
    "float8_e5m2": ("float8_e5m2", 1),
    "float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "short": ("int16", 2),
    "short int": ("int16", 2),
    "int": ("i32", 4),
    "long": ("i64", 8),
    "long int": ("i64", 8),
    "bool": ("bool", 1),
}
"""As traces write a C++ type -> as `Compute.shapes` does, and its bytes."""


class Operand(Struct, frozen=True):
    """One tensor that was handed to an operator."""

    dtype: str
    """As `bf16`."""
    shape: tuple[int, ...]
    bytes: int
    """Different bytes: what strides repeat, in a broadcast or in overlapping windows, counts once."""

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return next(size for name, size in _TYPES.values() if name == self.dtype)


class Inputs(Struct, frozen=True):
    """Arguments of an operator, by position; None for an argument that is no tensor, or one of unknown
    type."""

    operands: tuple[Operand | None, ...]
    concrete: tuple[str, ...]
    """Plain values as text, `[1, 1]` or `False`; empty if the trace has none."""

    @property
    def tensors(self) -> list[Operand]:
        """The known operands, in order."""
        return [operand for operand in self.operands if operand is not None]

    def operand(self, place: int) -> Operand | None:
        """Return the tensor at a position; None if no known one is there."""
        return self.operands[place] if place < len(self.operands) else None

    def text(self) -> str:
        """Return `bf16[64,32] bf16[32,16]`, cut if it is long."""
        words = " ".join(f"{each.dtype}[{','.join(map(str, each.shape))}]" for each in self.tensors)
        return words if len(words) <= _MOST_TEXT else f"{words[:_MOST_TEXT]}..."

    def numbers(self, place: int) -> tuple[int, ...] | None:
        """Return the plain list of whole numbers at a position; None if there is none."""
        values = _decoded(self.concrete[place].encode()) if place < len(self.concrete) else None
        if not isinstance(values, list) or not all(each.__class__ is int for each in values):
            return None
        return tuple(values)

    def truth(self, place: int) -> bool | None:
        """Return the plain True or False at a position; None if there is neither."""
        words = {"True": True, "False": False}
        return words.get(self.concrete[place]) if place < len(self.concrete) else None


def inputs_of(dims: bytes, types: bytes, strides: bytes, concrete: bytes) -> Inputs | None:
    """Return the inputs that the four lists of an event give; None if they do not fit each other."""
    shapes, kinds = _decoded(dims), _decoded(types)
    if not isinstance(shapes, list) or not isinstance(kinds, list) or len(shapes) != len(kinds):
        return None
    if len(shapes) > _MOST_INPUTS:
        return None
    steps = _decoded(strides)
    if not isinstance(steps, list) or len(steps) != len(shapes):
        steps = [None] * len(shapes)
    plain = _decoded(concrete)
    texts = plain if isinstance(plain, list) and all(isinstance(each, str) for each in plain) else []
    return Inputs(
        tuple(_operand(*each) for each in zip(shapes, kinds, steps, strict=True)),
        tuple(texts),
    )


def _operand(shape: Any, kind: Any, strides: Any) -> Operand | None:
    if not isinstance(kind, str) or not _are_sizes(shape):
        return None
    dtype = _TYPES.get(kind.removeprefix("c10::").lower())
    if dtype is None or (not shape and kind in ("Scalar", "double", "long", "int", "bool")):
        # A plain number and a tensor without dimensions look the same: neither moves much.
        return None
    if math.prod(shape) > MOST_ELEMENTS:
        return None
    repeated = strides if _are_sizes(strides) and len(strides) == len(shape) else [1] * len(shape)
    different = math.prod(size for size, stride in zip(shape, repeated, strict=True) if stride or not size)
    if repeated is strides and different:
        # Windows that overlap: no more elements than lie between the first and the last.
        different = min(different, 1 + sum((n - 1) * by for n, by in zip(shape, strides, strict=True)))
    return Operand(dtype[0], tuple(shape), different * dtype[1])


def _are_sizes(sizes: Any) -> bool:
    return (
        isinstance(sizes, list)
        and len(sizes) <= _MOST_DIMENSIONS
        and all(each.__class__ is int and 0 <= each <= MOST_ELEMENTS for each in sizes)
    )


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
