"""What an event's args say of a collective, as `CommArgs`."""

from __future__ import annotations

from typing import Any

import msgspec

from shardtoll.ledger.record import MOST_RANKS
from shardtoll.profiler.traces.event import Args, Mixed, mended, whole
from shardtoll.profiler.traces.trace import CommArgs

MOST_LISTED = 1 << 20
"""Longer lists of ranks, splits or shapes are left out."""

_MOST_DIMENSIONS = 64
"""A shape with more is none of torch's."""


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
        group_size=_rank(args.group_size) or None,
        ranks=_ranks(args.ranks),
        rank_start=_rank(args.rank_start),
        rank_stride=_rank(args.rank_stride),
        seq=_count(args.seq),
        is_async=_truth(args.is_async),
        source_rank=_rank(args.source_rank),
        target_rank=_rank(args.target_rank),
        root=_rank(args.root),
        in_splits=_numbers(args.in_splits),
        out_splits=_numbers(args.out_splits),
        dims=dims,
        types=types,
    )


def _text(value: Mixed) -> str | None:
    """Return text that can be written as UTF-8; a lone half of a surrogate pair becomes a question mark."""
    return None if value is None or value == "" else mended(str(value)[:256])


def _count(value: Mixed) -> int | None:
    if value.__class__ is bool:
        return None
    number = whole(value)
    return number if number >= 0 else None


def _rank(value: Mixed) -> int | None:
    """Return a rank or a number of ranks; None for more than any job has."""
    number = _count(value)
    return number if number is not None and number <= MOST_RANKS else None


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


def _ranks(raw: msgspec.Raw) -> tuple[int, ...] | None:
    """Return listed ranks; None where there are none, or one that no job has."""
    found = _numbers(raw)
    return found if found and max(found) < MOST_RANKS else None


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
    return len(found) <= _MOST_DIMENSIONS and all(
        size.__class__ is int and 0 <= size < 2**62 for size in found
    )
