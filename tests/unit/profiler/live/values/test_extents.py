"""Bytes that views cover, against marking each element by hand."""

from __future__ import annotations

import random

import pytest
import torch

from shardtoll.profiler.live.values import extents
from shardtoll.profiler.live.values.extents import covered_bytes, extent_of, is_dense


def by_hand(base: torch.Tensor, views: list[torch.Tensor]) -> int:
    base.zero_()
    for view in views:
        view.fill_(1)
    return int(base.count_nonzero()) * base.element_size()


def views_of(base: torch.Tensor, chance: random.Random) -> list[torch.Tensor]:
    found = []
    for _ in range(chance.randint(1, 4)):
        view = base
        for dim in range(base.dim()):
            start = chance.randrange(base.shape[dim])
            length = chance.randint(1, base.shape[dim] - start)
            view = view.narrow(dim, start, length)
        if chance.random() < 0.5:
            view = view[..., :: chance.randint(1, 3)]
        found.append(view.transpose(0, -1) if chance.random() < 0.5 else view)
    return found


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_views_together_cover_what_marking_them_finds(seed: int, dtype: torch.dtype) -> None:
    base = torch.zeros(4, 6, 5, dtype=dtype)
    views = views_of(base, random.Random(seed))
    begin = base.data_ptr()
    assert covered_bytes([extent_of(view, begin) for view in views]) == by_hand(base, views)


@pytest.mark.parametrize("seed", range(20))
def test_views_without_gaps_cover_what_marking_them_finds(seed: int) -> None:
    chance, base = random.Random(seed), torch.zeros(40, 3)
    starts = [chance.randrange(40) for _ in range(chance.randint(1, 8))]
    views = [base[start : start + chance.randint(0, 9)] for start in starts]
    begin = base.data_ptr()
    assert covered_bytes([extent_of(view, begin) for view in views]) == by_hand(base, views)


def test_what_is_expanded_counts_once_and_nothing_is_nothing() -> None:
    row = torch.zeros(8)
    assert covered_bytes([extent_of(row.expand(100, 8), row.data_ptr())]) == 8 * 4
    assert covered_bytes([extent_of(row[:0], row.data_ptr())]) == 0
    assert covered_bytes([]) == 0


def test_too_scattered_a_view_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents, "MOST_RUNS", 7)
    base = torch.zeros(8, 2)
    assert covered_bytes([extent_of(base[:, 0], base.data_ptr())]) is None
    assert covered_bytes([extent_of(base[:7, 0], base.data_ptr())]) == 7 * 4


def test_dense_is_whatever_fills_its_memory() -> None:
    base = torch.zeros(4, 6, 5)
    assert is_dense(base)
    assert is_dense(base.permute(2, 0, 1))
    assert not is_dense(base[:, :3])
    assert is_dense(base[1:2])
    assert not is_dense(base.expand(4, 6, 5)[..., :1].expand(4, 6, 5))
