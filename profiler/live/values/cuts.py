"""Which tensors are equal parts cut from a larger one on this rank, and the fingerprint of that one.

A tensor that is cut into as many parts as a group has ranks and gathered again was there all the time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shardtoll.profiler.live.cause.call import Call
from shardtoll.profiler.live.values.contents import Contents
from shardtoll.profiler.live.values.fingerprint import Fingerprints

_MOST: Final = 256
"""Parts remembered; of more, the oldest is forgotten."""


_NEAR: Final = 12
"""Frames above an operator in which DTensor's own code is looked for."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The whole of a part."""

    ticket: int
    """Ticket of the fingerprint of the whole."""
    content: int | None
    """Number of what the whole held."""
    by_placement: bool = False
    """Whether DTensor cut it, from a tensor that its placements call replicated."""


class Cuts:
    """Remembers the copies of parts made in one region."""

    def __init__(self, fingerprints: Fingerprints, contents: Contents, ranks: int) -> None:
        self._fingerprints = fingerprints
        self._contents = contents
        self._ranks = ranks
        self._cuts: dict[int, tuple[Any, int, Cut]] = {}
        """By storage: a reference that keeps its address, the copy's version, what it was cut from."""

    def clear(self) -> None:
        """Forget all parts."""
        self._cuts = {}

    def copied(self, source: Any, copy: Any) -> None:
        """Note a copy; only one of an equal part of a larger tensor is remembered."""
        if type(source) is not torch.Tensor or type(copy) is not torch.Tensor:
            return
        if self._ranks == 1 or source.layout is not torch.strided or source.dtype != copy.dtype:
            return
        if source.is_inference():
            # Nothing shows whether it is written to.
            return
        cut = self._whole(source)
        if cut is not None:
            cut = replace(cut, by_placement=_in_dtensor(sys._getframe(1)))
            if len(self._cuts) >= _MOST:
                del self._cuts[next(iter(self._cuts))]
            storage = copy.untyped_storage()
            reference: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._cuts[storage._cdata] = (reference, copy._version, cut)

    def of(self, call: Call) -> Cut | None:
        """Return what a gather's input was cut from and is still equal to a part of; None if unknown."""
        if call.op != "all_gather" or len(call.inputs) != 1:
            return None
        (part,) = call.inputs
        if type(part) is not torch.Tensor or part.layout is not torch.strided or part.numel() == 0:
            return None
        if part.is_inference():
            return None
        kept = self._cuts.get(part.untyped_storage()._cdata)
        if kept is None:
            return self._whole(part, call.message_bytes)
        _, version, cut = kept
        return cut if part._version == version else None

    def _whole(self, part: torch.Tensor, size: int | None = None) -> Cut | None:
        """Return the storage that the part is an equal part of; `size`: bytes it must have."""
        storage, bytes_each = part.untyped_storage(), part.numel() * part.element_size()
        held = storage.nbytes()
        if bytes_each == 0 or held <= bytes_each or held % bytes_each:
            return None
        if self._ranks % (held // bytes_each) or (size is not None and held != size):
            return None
        # The user's modes have no part in it.
        with torch._C._DisableTorchDispatch():
            # A view, not a detached tensor's: it has the version of what it is a view of.
            whole = part.detach().as_strided((held // part.element_size(),), (1,), 0)
            ticket = self._fingerprints.take(whole)
            content = self._contents.of([whole])
        return None if ticket is None else Cut(ticket, content)


def _in_dtensor(frame: FrameType | None) -> bool:
    """Return whether DTensor, which cuts only what is replicated, runs the operator."""
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name == "redistribute_local_tensor":
            return True
        frame = frame.f_back
    return False
