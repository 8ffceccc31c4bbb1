"""The order in which a pipeline rank runs its micro-batches: 1F1B, and interleaved with virtual stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Task(NamedTuple):
    """One pass of one micro-batch over one chunk of a pipeline rank."""

    backward: bool
    chunk: int
    micro_batch: int


def schedule(
    stages: int, rank: int, chunks: int, micro_batches: int, *, all_forward_first: bool = False
) -> list[Task]:
    """Return the rank's tasks in order, as Megatron-LM's schedules have them (arXiv 2104.04473, figure 4)."""
    total = micro_batches * chunks
    forward = [Task(False, chunk, micro) for chunk, micro in _order(stages, chunks, micro_batches)]
    backward = [
        Task(True, chunks - 1 - chunk, micro) for chunk, micro in _order(stages, chunks, micro_batches)
    ]
    if all_forward_first:
        return [*forward, *backward]
    if chunks == 1:
        ahead = min(stages - rank - 1, total)
    else:
        ahead = min((stages - rank - 1) * 2 + (chunks - 1) * stages, total)
    tasks = forward[:ahead]
    for number in range(total - ahead):
        tasks += (forward[ahead + number], backward[number])
    return [*tasks, *backward[total - ahead :]]


def _order(stages: int, chunks: int, micro_batches: int) -> Iterator[tuple[int, int]]:
    """Yield (chunk, micro-batch): groups of as many micro-batches as there are stages pass one chunk after
    another."""
    if chunks == 1:
        yield from ((0, micro) for micro in range(micro_batches))
        return
    for first in range(0, micro_batches, stages):
        for chunk in range(chunks):
            yield from ((chunk, micro) for micro in range(first, min(first + stages, micro_batches)))
