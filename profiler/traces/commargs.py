"""What an event's args say of a collective, as `CommArgs`."""

from __future__ import annotations

from typing import Any

import msgspec

from shardtoll.profiler.traces.event import Args, Mixed, whole
from shardtoll.profiler.traces.trace import CommArgs

MOST_LISTED = 1 << 20
"""Longer lists of ranks, splits or shapes are left out."""


def comm_args(args: Args) -> CommArgs:
    """Return what args say of a collective; nothing is guessed, odd values count as absent."""
    dims, types = _shapes(args.dims, args.types)
    return CommArgs(
        name=_text(args.collective),
        dtype=_text(args.dtype),
        in_elements=_count(args.in_elements),
        out_elements=_count(args.out_elements),
        group=_text(args.group),
        group_description=_text(args.group_description),
        group_size=_count(args.group_size) or None,
        ranks=_numbers(args.ranks) or None,
        rank_start=_count(args.rank_start),
        rank_stride=_count(args.rank_stride),
        seq=_count(args.seq),
        is_async=_truth(args.is_async),
        source_rank=_count(args.source_rank),
        target_rank=_count(args.target_rank),
        root=_count(args.root),
        in_splits=_numbers(args.in_splits),
        out_splits=_numbers(args.out_splits),
        dims=dims,
        types=types,
    )


def _text(value: Mixed) -> str | None:
    return None if value is None or value == "" else str(value)[:256]


def _count(value: Mixed) -> int | None:
    if value.__class__ is bool:
        return None
    number = whole(value)
    return number if number >= 0 else None


def _truth(value: Mixed) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.strip().lower())
    return bool(value) if value in (0, 1) else None


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw) if bytes(raw) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _numbers(raw: msgspec.Raw) -> tuple[int, ...] | None:
    """Read `[0, 1]` or `"[0, 1]"`; None where shortened with dots or not all whole numbers."""
    found = _decoded(raw)
    if isinstance(found, str):
        inner = found.strip()
        if not (inner.startswith("[") and inner.endswith("]")):
            return None
        found = [whole(part) for part in inner[1:-1].split(",")] if inner[1:-1].strip() else []
    if not isinstance(found, list) or len(found) > MOST_LISTED:
        return None
    if any(number.__class__ is not int or not 0 <= number < 2**62 for number in found):
        return None
    return tuple(found)


def _shapes(
    dims: msgspec.Raw, types: msgspec.Raw
) -> tuple[tuple[tuple[int, ...], ...] | None, tuple[str, ...] | None]:
    """Return shapes of the tensors and their types; lists of tensors count one by one.

    A scalar has no shape, and is told from a tensor without dimensions by its type.
    """
    found = _decoded(dims)
    if not isinstance(found, list) or len(found) > MOST_LISTED:
        return None, None
    named = _decoded(types)
    known = named if isinstance(named, list) and len(named) == len(found) else [""] * len(found)
    shapes: list[tuple[int, ...]] = []
    kinds: list[str] = []
    for shape, kind in zip(found, known, strict=True):
        if not isinstance(shape, list) or not isinstance(kind, str):
            continue
        if shape and all(isinstance(inner, list) for inner in shape):
            inner_shapes = [inner for inner in shape if _is_shape(inner)]
            shapes += [tuple(inner) for inner in inner_shapes]
            kinds += [kind] * len(inner_shapes)
        elif _is_shape(shape) and (shape or kind not in ("", "Scalar", "ScalarList", "TensorList")):
            shapes.append(tuple(shape))
            kinds.append(kind)
    return tuple(shapes) or None, tuple(kinds) if shapes and any(kinds) else None


def _is_shape(found: list[Any]) -> bool:
    return all(size.__class__ is int and 0 <= size < 2**62 for size in found)
