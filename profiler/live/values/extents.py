"""Which bytes of a piece of memory a strided view covers, and how many several views cover together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

MOST_RUNS: Final = 1 << 16
"""Views of more separate runs of bytes are not counted: that would cost a step milliseconds."""


class Extent(NamedTuple):
    """A view: where it begins and how it goes on, all in bytes."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


def extent_of(tensor: torch.Tensor, begin: int) -> Extent:
    """Return what a strided tensor covers of the memory that begins at the address `begin`."""
    itemsize = tensor.element_size()
    strides = tuple(stride * itemsize for stride in tensor.stride())
    return Extent(tensor.data_ptr() - begin, tuple(tensor.shape), strides, itemsize)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor fills one piece of memory, in whatever order of its dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _runs(extent: Extent) -> tuple[npt.NDArray[np.int64], int] | None:
    """Return where the view's runs of bytes begin and how long each is; None if there are too many."""
    length = extent.itemsize
    outer = []
    for stride, size in sorted(zip(extent.strides, extent.sizes, strict=True)):
        if size == 0:
            return np.empty(0, np.int64), 0
        if size == 1 or stride == 0:
            continue
        if stride <= length:
            length += stride * (size - 1)
        else:
            outer.append((stride, size))
    count = 1
    for _, size in outer:
        count *= size
    if count > MOST_RUNS:
        return None
    starts = np.array([extent.offset], np.int64)
    for stride, size in outer:
        starts = (starts[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return starts, length


def _one_run(extent: Extent) -> tuple[int, int] | None:
    """Return where a view without gaps begins and ends, as nearly all are; None for one with gaps."""
    length = expected = extent.itemsize
    strides = extent.strides
    for place in range(len(strides) - 1, -1, -1):
        size = extent.sizes[place]
        if size == 0:
            return extent.offset, extent.offset
        if size == 1:
            continue
        if strides[place] != expected:
            return None
        length = expected = size * expected
    return extent.offset, extent.offset + length


def _covered_by_runs(runs: list[tuple[int, int]]) -> int:
    runs.sort()
    total = covered_to = 0
    for place, (begin, end) in enumerate(runs):
        if place == 0 or begin > covered_to:
            covered_to = begin
        if end > covered_to:
            total += end - covered_to
            covered_to = end
    return total


def covered_bytes(extents: Iterable[Extent]) -> int | None:
    """Return how many bytes the views cover together, each once; None if they are too scattered."""
    extents = list(extents)
    whole = [run for run in map(_one_run, extents) if run is not None]
    if len(whole) == len(extents):
        # Numpy takes as long to begin with as this takes for dozens.
        return _covered_by_runs(whole)
    begins, ends = [], []
    for extent in extents:
        runs = _runs(extent)
        if runs is None:
            return None
        starts, length = runs
        begins.append(starts)
        ends.append(starts + length)
    if not begins:
        return 0
    begin, end = np.concatenate(begins), np.concatenate(ends)
    if not len(begin):
        return 0
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    # Memory below the furthest end so far is covered already.
    covered_to = np.concatenate([begin[:1], end[:-1]])
    return int(np.maximum(end - np.maximum(begin, covered_to), 0).sum())
