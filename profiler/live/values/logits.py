"""Which gathers put the classes of logits together for a cross entropy, which could do with parts of them.

A result that was gathered along its last dimension is remembered by its memory. So is a copy of it in another
dtype. It is such a gather if `log_softmax` reads all of it along that dimension in `F.cross_entropy`, and no
other operator reads it. The result that a metric reads is needed whole. Nothing is kept alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shardtoll.profiler.live.cause.pending import PendingCollective, Surveyed
from shardtoll.profiler.live.values.extents import Extent
from shardtoll.profiler.live.values.owned import read_dimension

_FUNCTION: Final = "cross_entropy"
_FILE: Final = "torch/nn/functional.py"
_OF_THE_LOSS: Final = (torch.ops.aten._log_softmax.default, torch.ops.aten._to_copy.default)
"""Operators of `F.cross_entropy` on logits; a copy in another dtype is followed."""
_DEEP: Final = 60
"""Frames between `F.cross_entropy` and the operator at most; DTensor's own are some twenty."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """All classes of some tokens, in one piece of memory."""

    pending: PendingCollective
    storage: Any
    """A StorageWeakRef."""
    begin: int
    numel: int
    classes: int


class Logits:
    """The results of one region that were gathered along their last dimension."""

    def __init__(self) -> None:
        self.wholes: dict[int, _Whole] = {}
        """By storage."""

    def clear(self) -> None:
        """Forget all."""
        self.wholes.clear()

    def gathered(self, pending: PendingCollective, whole: torch.Tensor, mine: Extent) -> None:
        """Note a gather's result laid out anew; `mine` is where this rank's part lies in it."""
        rank, ranks = pending.message.group_rank, pending.message.group_size
        if pending.message.op != "all_gather" or rank is None or not mine.sizes:
            return
        size = whole.numel() * whole.element_size()
        if not whole.is_floating_point() or not whole.is_contiguous():
            return
        if read_dimension((mine,), size, rank, ranks) == len(mine.sizes) - 1:
            self._note(pending, whole, mine.sizes[-1] * ranks)

    def cast(self, read: torch.Tensor, copy: torch.Tensor) -> None:
        """Note that a tensor was copied, as into another dtype."""
        whole = self._whole(read)
        if whole is not None and copy.is_floating_point() and _is_all(copy, whole.numel):
            self._note(whole.pending, copy, whole.classes)

    def read(self, args: Any, frame: FrameType | None) -> None:
        """Note that `log_softmax` was given these arguments below a frame."""
        if not self.wholes:
            return
        logits, dim = args[0], int(args[1])
        whole = self._whole(logits)
        if whole is None or logits.shape[-1] != whole.classes or dim % logits.dim() != logits.dim() - 1:
            return
        if _of_one_class_each(frame):
            surveyed = whole.pending.surveyed = whole.pending.surveyed or Surveyed()
            surveyed.loss_classes = whole.classes

    def read_otherwise(self, func: Any, values: Iterable[Any]) -> None:
        """Note that an operator reads or copies these values: logits among them serve more than the loss."""
        if func in _OF_THE_LOSS:
            return
        for value in values:
            if isinstance(value, (list, tuple)):
                self.read_otherwise(func, value)
            whole = self._of_storage(value) if isinstance(value, torch.Tensor) else None
            if whole is None:
                continue
            if whole.pending.surveyed is not None:
                whole.pending.surveyed.loss_classes = None
            self.wholes = {
                key: each for key, each in self.wholes.items() if each.pending is not whole.pending
            }

    def _of_storage(self, tensor: torch.Tensor) -> _Whole | None:
        try:
            whole = self.wholes.get(tensor.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):
            # It has no memory of its own.
            return None
        # Memory that was freed may be somebody else's now.
        return None if whole is None or whole.storage.expired() else whole

    def _note(self, pending: PendingCollective, tensor: torch.Tensor, classes: int) -> None:
        storage: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self.wholes[storage.cdata] = _Whole(pending, storage, tensor.data_ptr(), tensor.numel(), classes)

    def _whole(self, tensor: torch.Tensor) -> _Whole | None:
        """Return what a tensor is all of; None if it is part of it, or of none."""
        whole = self.wholes.get(tensor.untyped_storage()._cdata) if self.wholes else None
        if whole is None or tensor.data_ptr() != whole.begin or not _is_all(tensor, whole.numel):
            return None
        return whole


def _is_all(tensor: torch.Tensor, numel: int) -> bool:
    return tensor.numel() == numel and tensor.dim() > 0 and tensor.is_contiguous()


def _of_one_class_each(frame: FrameType | None) -> bool:
    """Whether the frame is within `F.cross_entropy` with one class a token, as `loss_parallel` asks for."""
    for _ in range(_DEEP):
        if frame is None:
            return False
        code = frame.f_code
        if code.co_name == _FUNCTION and code.co_filename.endswith(_FILE):
            given = frame.f_locals
            target = given.get("target")
            return (
                isinstance(target, torch.Tensor)
                and not target.is_floating_point()
                and given.get("label_smoothing") == 0
            )
        frame = frame.f_back
    return False
