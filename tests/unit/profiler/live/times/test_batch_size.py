"""How much a batch holds: samples and tokens by its shapes, and ranks by the loader's sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from shardtoll.profiler.live.cause.pending import BatchSize
from shardtoll.profiler.live.times.batch_size import batch_size

ROWS = TensorDataset(torch.randn(20, 5), torch.zeros(20, dtype=torch.int64))


@dataclass
class Example:
    """A batch of a type of its own."""

    name: str
    tokens: torch.Tensor


def first(loader: Any) -> BatchSize:
    iterator = iter(loader)
    return batch_size(iterator, next(iterator))


def test_samples_are_the_first_dimension_and_the_sampler_tells_the_ranks() -> None:
    assert first(DataLoader(ROWS, batch_size=8)) == BatchSize(8, None, None)
    sampler = DistributedSampler(ROWS, num_replicas=4, rank=1)
    assert first(DataLoader(ROWS, batch_size=5, sampler=sampler)) == BatchSize(5, None, 4)
    *_, last = DataLoader(ROWS, batch_size=8)
    assert batch_size(iter(DataLoader(ROWS, batch_size=8)), last) == BatchSize(4, None, None)


def test_tokens_are_whole_numbers_in_two_dimensions() -> None:
    tokens = torch.zeros(6, 128, dtype=torch.int64)
    batch = {"name": ["a"] * 6, "input_ids": tokens, "labels": tokens}
    assert batch_size(object(), batch) == BatchSize(6, 768, None)
    assert batch_size(object(), [Example("a", tokens[:2])]) == BatchSize(2, 256, None)
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    assert batch_size(object(), (images, torch.zeros(4, dtype=torch.int64))) == BatchSize(4, None, None)


def test_a_loader_may_put_the_samples_second() -> None:
    def by_time(rows: list[Any]) -> torch.Tensor:
        return torch.stack([row for row, _ in rows], dim=1)

    assert first(DataLoader(ROWS, batch_size=8, collate_fn=by_time)).samples == 8


@pytest.mark.parametrize("batch", [None, 3, "text", [], ["text"] * 10_000, torch.tensor(1.0)])
def test_what_has_no_samples_is_unknown(batch: Any) -> None:
    assert batch_size(object(), batch) == BatchSize(None, None, None)


def test_batches_that_nothing_is_trained_on_are_not_counted() -> None:
    with torch.no_grad():
        assert first(DataLoader(ROWS, batch_size=8)) == BatchSize(None, None, None)


class Whole(IterableDataset[torch.Tensor]):
    """Gives whole batches."""

    def __iter__(self) -> Any:
        yield torch.zeros(7, 3)


def test_a_data_set_may_make_the_batches_itself() -> None:
    assert first(DataLoader(Whole(), batch_size=None)).samples == 7
