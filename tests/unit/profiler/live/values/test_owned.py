"""Where a part lies in views and copies: boxes against masks, element by element."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.profiler.live.values.extents import Extent, extent_of
from shardtoll.profiler.live.values.owned import box_within, placed, read_dimension


def marked(extent: Extent, numel: int) -> torch.Tensor:
    """Return which elements of a flat float32 tensor an extent covers."""
    mask = torch.zeros(numel, dtype=torch.bool)
    strides = [stride // extent.itemsize for stride in extent.strides]
    mask.as_strided(extent.sizes, strides, extent.offset // extent.itemsize).fill_(True)
    return mask


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_boxes_are_exact_or_not_claimed(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    order = data.draw(st.permutations(range(len(shape))))
    view = whole.permute(order)
    begin = data.draw(st.integers(0, whole.numel() - 1))
    count = data.draw(st.integers(1, whole.numel() - begin))
    box = box_within(extent_of(view, whole.data_ptr()), Extent(begin * 4, (count,), (4,), 4))
    mine = (view >= begin) & (view < begin + count)
    if box is None:
        return
    claimed = torch.zeros_like(mine)
    claimed[tuple(slice(first, first + length) for first, length in box)] = True
    assert torch.equal(claimed, mine)
    copy = view.clone(memory_format=torch.contiguous_format)
    part = placed("aten::clone", (), [tuple(view.shape)], [box], extent_of(copy, copy.data_ptr()))
    if mine.any():
        assert part is not None
        assert torch.equal(marked(part, copy.numel()), mine.flatten())


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_put_together_lies_where_it_was_put(dim: int, place: int) -> None:
    parts = [torch.full((2, 3), float(number)) for number in range(3)]
    boxes = [((0, 2), (0, 3)) if number == place else None for number in range(3)]
    shapes = [(2, 3)] * 3
    for name, copy in (("aten::cat", torch.cat(parts, dim)), ("aten::stack", torch.stack(parts, dim))):
        extent = placed(name, (parts, dim), shapes, boxes, extent_of(copy, copy.data_ptr()))
        assert extent is not None
        assert torch.equal(marked(extent, copy.numel()), copy.flatten() == place)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("dim", [0, 1])
def test_an_even_part_is_known_by_its_dimension(ranks: int, dim: int) -> None:
    whole = torch.randn(8, 12)
    for rank in range(ranks):
        reads = {
            number: extent_of(whole.chunk(ranks, dim)[number], whole.data_ptr()) for number in range(ranks)
        }
        assert read_dimension([reads[rank]], whole.nbytes, rank, ranks) == dim
        assert read_dimension([reads[(rank + 1) % ranks]], whole.nbytes, rank, ranks) is None
        assert read_dimension(list(reads.values()), whole.nbytes, rank, ranks) is None
    # Every so manieth row is a part of another view.
    every = extent_of(whole[::ranks], whole.data_ptr())
    assert read_dimension([every], whole.nbytes, 0, ranks) == 1
    assert read_dimension([every], whole.nbytes, 0, ranks, whole.shape) is None
