"""Place of a rank's own part in a result, element by element: through views, copies and concatenations.

A part is a box: an interval of each dimension of a view. It is followed exactly or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from shardtoll.profiler.live.values.extents import Extent, covered_bytes

Box: TypeAlias = tuple[tuple[int, int], ...]
"""First index and length, by dimension; a length of 0: nothing."""

_PUT_TOGETHER = ("aten::cat", "aten::stack")


def box_within(view: Extent, part: Extent) -> Box | None:
    """Return which elements of a view lie in a part of the memory; None if they are no box.

    The part has to be one run of bytes.
    """
    if len(part.sizes) != 1 or part.strides[0] != part.itemsize:
        return None
    low, high = part.offset - view.offset, part.offset - view.offset + part.sizes[0] * part.itemsize
    box = [(0, size) for size in view.sizes]
    if 0 in view.sizes:
        return tuple(box)
    dims = sorted(range(len(view.sizes)), key=lambda dim: view.strides[dim], reverse=True)
    dims = [dim for dim in dims if view.sizes[dim] > 1]
    for place, dim in enumerate(dims):
        size, stride = view.sizes[dim], view.strides[dim]
        inner = view.itemsize + sum((view.sizes[d] - 1) * view.strides[d] for d in dims[place + 1 :])
        if stride < inner:
            # Windows that overlap, or an expanded dimension.
            return None
        inside = _clipped(-(-low // stride), (high - inner) // stride, size)
        touched = _clipped((low - inner) // stride + 1, -(-high // stride) - 1, size)
        if inside == touched:
            box[dim] = inside
            return tuple(box)
        if inside[1] or touched[1] > 1:
            return None
        box[dim] = touched
        low, high = low - touched[0] * stride, high - touched[0] * stride
    # One element is left.
    return tuple(box) if low <= 0 and high >= view.itemsize else tuple((0, 0) for _ in box)


def _clipped(first: int, last: int, size: int) -> tuple[int, int]:
    """Return the first and the number of the indices from `first` to `last` that are below `size`."""
    first, last = max(first, 0), min(last, size - 1)
    return (first, last - first + 1) if first <= last else (0, 0)


def placed(
    operator: str,
    args: Sequence[Any],
    shapes: Sequence[tuple[int, ...]],
    boxes: Sequence[Box | None],
    copy: Extent,
) -> Extent | None:
    """Return where a copy has the elements of the boxes; None if that is no one box, or unknown.

    `shapes` and `boxes` are those of the tensors that were copied, in order; a box None: nothing of it.
    """
    filled = [place for place, box in enumerate(boxes) if box is not None and all(n for _, n in box)]
    if len(filled) != 1:
        return None
    (place,) = filled
    box = boxes[place]
    assert box is not None
    if operator not in _PUT_TOGETHER:
        return _part(copy, box) if len(shapes) == 1 and shapes[0] == copy.sizes else None
    dim = int(args[1]) if len(args) > 1 else 0
    dim %= len(copy.sizes)
    if operator == "aten::stack":
        return _part(copy, (*box[:dim], (place, 1), *box[dim:]))
    if any(len(shape) != len(copy.sizes) for shape in shapes):
        return None
    before = sum(shape[dim] for shape in shapes[:place])
    first, length = box[dim]
    return _part(copy, (*box[:dim], (before + first, length), *box[dim + 1 :]))


def _part(whole: Extent, box: Box) -> Extent:
    offset = whole.offset + sum(first * stride for (first, _), stride in zip(box, whole.strides, strict=True))
    return Extent(offset, tuple(length for _, length in box), whole.strides, whole.itemsize)


def read_dimension(
    reads: Collection[Extent], size: int, rank: int, ranks: int, shape: Sequence[int] | None = None
) -> int | None:
    """Return the dimension along which one of the reads is this rank's even part, if it holds all of them.

    `size`: bytes of the whole, which begins where the reads' offsets count from. `shape`: that of the whole;
    without it any view of the whole will do.
    """
    for read in reads:
        for dim, (length, stride) in enumerate(zip(read.sizes, read.strides, strict=True)):
            if read.offset != rank * length * stride:
                continue
            sizes = (*read.sizes[:dim], length * ranks, *read.sizes[dim + 1 :])
            if shape is not None and sizes != tuple(shape):
                continue
            whole = Extent(0, sizes, read.strides, read.itemsize)
            bytes_read = covered_bytes([read])
            if bytes_read is None or bytes_read * ranks != size or covered_bytes([whole]) != size:
                continue
            if _ends(whole) == size and covered_bytes([*reads]) == bytes_read:
                return dim
    return None


def _ends(extent: Extent) -> int:
    """Return where the last byte of it ends."""
    steps = zip(extent.sizes, extent.strides, strict=True)
    return extent.itemsize + sum((size - 1) * stride for size, stride in steps)
