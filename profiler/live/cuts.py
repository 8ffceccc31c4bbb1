"""Which tensors are equal parts cut from a larger one on this rank, and the fingerprint of that one.

What is cut into as many parts as a group has ranks and gathered again was there all the time.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shardtoll.profiler.live.call import Call
from shardtoll.profiler.live.fingerprint import Fingerprints

_MOST: Final = 256
"""Parts remembered; of more, the oldest is forgotten."""


class Cuts:
    """Remembers the copies of parts made in one region."""

    def __init__(self, fingerprints: Fingerprints, ranks: int) -> None:
        self._fingerprints = fingerprints
        self._ranks = ranks
        self._tickets: dict[int, tuple[Any, int]] = {}

    def clear(self) -> None:
        """Forget all parts."""
        self._tickets = {}

    def copied(self, source: Any, copy: Any) -> None:
        """Note a copy; only one of an equal part of a larger tensor is remembered."""
        if type(source) is not torch.Tensor or type(copy) is not torch.Tensor:
            return
        if self._ranks == 1 or source.layout is not torch.strided or source.dtype != copy.dtype:
            return
        ticket = self._whole(source)
        if ticket is not None:
            if len(self._tickets) >= _MOST:
                del self._tickets[next(iter(self._tickets))]
            storage = copy.untyped_storage()
            reference: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._tickets[storage._cdata] = (reference, ticket)

    def ticket_of(self, call: Call) -> int | None:
        """Return the ticket of the tensor that a gather's input was cut from, None where none is known."""
        if call.op != "all_gather" or len(call.inputs) != 1:
            return None
        (part,) = call.inputs
        if type(part) is not torch.Tensor or part.layout is not torch.strided or part.numel() == 0:
            return None
        known = self._tickets.get(part.untyped_storage()._cdata)
        if known is not None:
            return known[1]
        return self._whole(part, call.message_bytes)

    def _whole(self, part: torch.Tensor, size: int | None = None) -> int | None:
        """Return the ticket of the storage that the part is an equal part of; `size`: bytes it must have."""
        storage, bytes_each = part.untyped_storage(), part.numel() * part.element_size()
        held = storage.nbytes()
        if bytes_each == 0 or held <= bytes_each or held % bytes_each:
            return None
        if self._ranks % (held // bytes_each) or (size is not None and held != size):
            return None
        # The user's modes have no part in it.
        with torch._C._DisableTorchDispatch():
            whole = part.detach().as_strided((held // part.element_size(),), (1,), 0)
            return self._fingerprints.take(whole)
