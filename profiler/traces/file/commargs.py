"""Facts in an event's args about a collective, as `CommArgs`."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from shardtoll.ledger.records.record import MOST_RANKS
from shardtoll.profiler.traces.file.event import Args, Mixed, mended, whole
from shardtoll.profiler.traces.file.trace_columns import CommArgs

MOST_LISTED = 1 << 20
"""Longer lists of ranks, splits or shapes are left out."""

_MOST_DIMENSIONS = 64
"""A shape with more is none of torch's."""


def comm_args(args: Args) -> CommArgs:
    """Return the args' facts about a collective; nothing is guessed, odd values count as absent."""
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
        root=_root(args),
        in_splits=_numbers(args.in_splits),
        out_splits=_numbers(args.out_splits),
        dims=dims,
        types=types,
    )


_ROOTED: Final = frozenset(("broadcast", "reduce", "gather", "scatter"))


def _root(args: Args) -> int | None:
    """Return the root's global rank; of operations with a root `Rank` is its place in the group."""
    root = _rank(args.root)
    if root is not None or args.rank is None:
        return root
    name = str(args.collective or "").lower().strip("_").removesuffix("_oop")
    place, ranks = _rank(args.rank), _ranks(args.ranks)
    if name not in _ROOTED or place is None or ranks is None or place >= len(ranks):
        return None
    return ranks[place]


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
    """Read `[0, 1]` or `"[0, 1]"`; None if shortened with dots or not all whole numbers."""
    numbers = _decoded(raw)
    if isinstance(numbers, str):
        inner = numbers.strip()
        if not (inner.startswith("[") and inner.endswith("]")):
            return None
        numbers = [whole(part) for part in inner[1:-1].split(",")] if inner[1:-1].strip() else []
    if not isinstance(numbers, list) or len(numbers) > MOST_LISTED:
        return None
    if any(number.__class__ is not int or not 0 <= number < 2**62 for number in numbers):
        return None
    return tuple(numbers)


def _ranks(raw: msgspec.Raw) -> tuple[int, ...] | None:
    """Return listed ranks; None if there are none, or if one of them is too large for any job."""
    ranks = _numbers(raw)
    return ranks if ranks and max(ranks) < MOST_RANKS else None


def _shapes(
    dims: msgspec.Raw, types: msgspec.Raw
) -> tuple[tuple[tuple[int, ...], ...] | None, tuple[str, ...] | None]:
    """Return shapes of the tensors and their types; lists of tensors count one by one.

    A scalar has no shape; its type distinguishes it from a tensor without dimensions.
    """
    listed = _decoded(dims)
    if not isinstance(listed, list) or len(listed) > MOST_LISTED:
        return None, None
    named = _decoded(types)
    texts = named if isinstance(named, list) and len(named) == len(listed) else [""] * len(listed)
    shapes: list[tuple[int, ...]] = []
    kinds: list[str] = []
    for shape, kind in zip(listed, texts, strict=True):
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


def _is_shape(sizes: list[Any]) -> bool:
    return len(sizes) <= _MOST_DIMENSIONS and all(
        size.__class__ is int and 0 <= size < 2**62 for size in sizes
    )
