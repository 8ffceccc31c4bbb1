"""What is read of a result, in closed form: views, copies, unions, overwriting, memory used again."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shardtoll.profiler.live.cause.pending import Message, PendingCollective, Place, Surveyed
from shardtoll.profiler.live.values.fingerprint import Fingerprints
from shardtoll.profiler.live.values.results import Results

ROWS, COLUMNS = 8, 6
WHOLE = ROWS * COLUMNS * 4


class Watching(TorchDispatchMode):
    """Tells `results` of every operator, as the survey does."""

    def __init__(self, results: Results) -> None:
        super().__init__()
        self.results = results

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        hits = self.results.touched(func, args, kwargs) if self.results.pieces else None
        result = func(*args, **kwargs or {})
        if hits:
            self.results.ran(func, hits, result, args)
        return result


def pending(op: str = "all_reduce", cause: str | None = None) -> PendingCollective:
    place = Place("forward", caused_by_op=cause)
    return PendingCollective(Message(op, "g", 2, "float32", WHOLE, WHOLE, "SUM", group_rank=1), place, 0)


class Followed:
    """A result of ROWS x COLUMNS floats that is followed while the context lasts."""

    def __init__(self, op: str = "all_reduce", cause: str | None = None, parts: int = 1) -> None:
        self.prints = Fingerprints()
        self.results = Results(self.prints)
        self.pending = pending(op, cause)
        self.tensors = list(torch.arange(ROWS * COLUMNS).float().view(ROWS, COLUMNS).chunk(parts))
        self.tensors = [tensor.clone() for tensor in self.tensors]
        self.results.follow(self.pending, self.tensors)
        self._mode = Watching(self.results)

    def __enter__(self) -> torch.Tensor:
        self._mode.__enter__()
        return self.tensors[0] if self.tensors else torch.empty(0)

    def __exit__(self, *_: object) -> None:
        self._mode.__exit__(None, None, None)

    def outcome(self, *, unseen_reads: bool = False) -> Surveyed:
        self.tensors.clear()
        gc.collect()
        self.results.finish(unseen_reads=unseen_reads)
        assert self.pending.surveyed is not None
        return self.pending.surveyed


READS = {
    "whole": (lambda x: x + 1, WHOLE, "aten.add.Tensor"),
    "in place": (lambda x: x.add_(1), WHOLE, "aten.add_.Tensor"),
    "rows": (lambda x: x[:2] * 2, WHOLE // 4, "aten.slice.Tensor"),
    "a column": (lambda x: x[:, 1].exp(), WHOLE // COLUMNS, "aten.select.int"),
    "a chunk": (lambda x: x.chunk(4)[3].clone(), WHOLE // 4, "aten.split.Tensor"),
    "narrowed": (lambda x: x.narrow(0, 2, 3).sum(), 3 * COLUMNS * 4, "aten.slice.Tensor"),
    "as strided": (lambda x: x.as_strided((5,), (1,)).sum(), 5 * 4, "aten.as_strided.default"),
    "a view of a view": (lambda x: x.view(4, 12)[1][:3].neg(), 3 * 4, "aten.select.int"),
    "overlapping": (lambda x: x[:3].sum() + x[2:4].sum(), WHOLE // 2, "aten.slice.Tensor"),
    "both halves": (lambda x: x[:4].sum() + x[4:].sum(), WHOLE, "aten.slice.Tensor"),
    "the same twice": (lambda x: x[0].sum() + x[0].sum(), COLUMNS * 4, "aten.select.int"),
    "transposed": (lambda x: x.t() @ x, WHOLE, "aten.mm.default"),
    "a list of parts": (lambda x: torch.cat([x[:1], x[3:4]]), 2 * COLUMNS * 4, "aten.slice.Tensor"),
    "a matmul of a part": (lambda x: x[:2] @ torch.ones(COLUMNS, 2), WHOLE // 4, "aten.slice.Tensor"),
    "a copy, then all": (lambda x: x.clone() * 2, WHOLE, "aten.mul.Tensor"),
    "a copy, then a part": (lambda x: x.clone()[:2] * 2, WHOLE // 4, "aten.slice.Tensor"),
    "laid out anew, then a part": (
        lambda x: torch.cat(x.chunk(2), dim=1)[:, :3] * 2,
        (ROWS // 2) * 3 * 4,
        "aten.slice.Tensor",
    ),
    "copied into a buffer": (lambda x: torch.empty(ROWS, COLUMNS).copy_(x)[0].sum(), COLUMNS * 4, None),
    "converted": (lambda x: x.double()[:2], WHOLE, "aten._to_copy.default"),
}


@pytest.mark.parametrize("name", READS)
def test_bytes_read(name: str) -> None:
    read, used, first = READS[name]
    followed = Followed()
    with followed:
        read(followed.tensors[0])
    outcome = followed.outcome()
    assert outcome.used_bytes == used
    if first is not None:
        assert outcome.used_by == first


def test_what_is_kept_unread_is_unknown_and_what_is_freed_unread_is_not_used() -> None:
    followed = Followed()
    kept = list(followed.tensors)
    assert followed.outcome().used_bytes is None
    assert kept
    assert Followed().outcome().used_bytes == 0


def test_what_is_read_in_part_and_kept_is_unknown() -> None:
    followed = Followed()
    with followed as x:
        x[0].sum()
    assert followed.outcome().used_bytes is None, "the next step may read the rest"
    assert x.numel()


@pytest.mark.parametrize(
    ("parts", "read", "used"),
    [
        (2, lambda own, _: own.sum(), WHOLE // 2),
        (2, lambda _, other: other.sum(), None),
        (2, lambda own, other: torch.cat([other, own])[ROWS // 2 :].sum(), WHOLE // 2),
        (2, lambda own, other: torch.cat([other, own])[: ROWS // 2].sum(), None),
        (2, lambda own, other: torch.cat([other, own], 1)[:, COLUMNS:].sum(), WHOLE // 2),
        (2, lambda own, other: torch.cat([other, own], 1)[:, :COLUMNS].sum(), None),
        (1, lambda whole: whole[ROWS // 2 :].sum(), WHOLE // 2),
        (1, lambda whole: whole[: ROWS // 2].sum(), None),
        (1, lambda whole: whole.sum(), WHOLE),
    ],
)
def test_of_a_gather_only_reads_of_the_own_part_count_as_a_share(parts: int, read: Any, used: Any) -> None:
    followed = Followed("all_gather", parts=parts)
    with followed:
        # This rank is the second of two.
        read(*reversed(followed.tensors))
    assert followed.outcome().used_bytes == used


def test_where_compiled_code_may_have_read_a_part_proves_nothing() -> None:
    for read, used in ((lambda x: x[:1] + 1, None), (lambda x: x + 1, WHOLE)):
        followed = Followed()
        with followed:
            read(followed.tensors[0])
        assert followed.outcome(unseen_reads=True).used_bytes == used


def test_all_outputs_of_a_list_count() -> None:
    followed = Followed("all_gather", parts=2)
    with followed:
        followed.tensors[1][:1].sum()
    assert followed.outcome().used_bytes == COLUMNS * 4
    followed = Followed("all_gather", parts=2)
    with followed:
        torch.cat(followed.tensors)[-3:].sum()
    assert followed.outcome().used_bytes == 3 * COLUMNS * 4


def test_what_is_overwritten_is_read_no_more() -> None:
    followed = Followed()
    with followed as x:
        x[0].sum()
        x.zero_()
        x.sum()
    del x
    assert followed.outcome().used_bytes == COLUMNS * 4


def test_memory_used_again_is_not_taken_for_the_result() -> None:
    memory = np.zeros((ROWS, COLUMNS), np.float32)
    followed = Followed()
    followed.tensors.clear()
    first = torch.from_numpy(memory)
    followed.results.clear()
    followed.results.follow(followed.pending, [first])
    with followed:
        first[0].sum()
        address = first.data_ptr()
        del first
        # The same memory, in a storage of its own: the result's has gone.
        second = torch.from_numpy(memory)
        assert second.data_ptr() == address
        second.sum()
    assert followed.outcome().used_bytes == COLUMNS * 4


def test_nothing_is_kept_alive() -> None:
    followed = Followed()
    with followed as x:
        x[0].sum()
    storage = torch.multiprocessing.reductions.StorageWeakRef(followed.tensors[0].untyped_storage())
    followed.tensors.clear()
    del x
    assert storage.expired()


@pytest.mark.parametrize("cause", ["DistributedDataParallel.reducer", "FSDP.unshard"])
def test_buffers_of_wrappers_are_not_followed(cause: str) -> None:
    followed = Followed(cause=cause)
    with followed as x:
        x[0].sum()
    followed.results.finish(unseen_reads=False)
    assert followed.pending.surveyed is None


def test_the_fingerprint_is_of_the_whole_as_first_read() -> None:
    followed = Followed()
    with followed as x:
        x[1:3].sum()
        x.add_(1)
    ticket = followed.outcome().output_ticket
    assert ticket is not None
    wanted = Fingerprints()
    wanted.take(torch.arange(ROWS * COLUMNS).float())
    assert followed.prints.read()[ticket] == wanted.read()[0]
