"""Numbers for what memory holds: equal ones if two tensors are one untouched memory, or a copy of it.

Equal values can be a coincidence: a mask of ones, a branch that is zero as yet, ranks of one seed. Content in
the same memory that was not written to since is the same whatever its values are. A write is known by the
version that autograd counts. Storages are known by weak references, which keep their addresses from being
given away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shardtoll.profiler.live.values.extents import is_dense

_MOST: Final = 4096
"""Storages known at once; with more, all are forgotten: what follows counts as new."""

_Held: TypeAlias = dict[tuple[int, int], tuple[int, int]]
"""Offset and size in bytes -> version and number."""


class Contents:
    """Numbers the contents of one region's memory."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[Any, _Held]] = {}
        self._several: dict[tuple[int, ...], int] = {}
        self._count = 0

    def clear(self) -> None:
        """Forget all."""
        self._storages, self._several, self._count = {}, {}, 0

    def of(self, tensors: Sequence[torch.Tensor]) -> int | None:
        """Return the number of the tensors' present content; None if that cannot be followed."""
        return self._together([self._of(tensor) for tensor in tensors])

    def made(self, tensors: Sequence[torch.Tensor]) -> int | None:
        """Return a new number: an operator has just written the tensors, whatever their versions say."""
        for tensor in tensors:
            entry = self._storages.get(tensor.untyped_storage()._cdata) if _is_plain(tensor) else None
            if entry is not None:
                begin, size = _place(tensor)
                # Tensors that lie over it were written to as well.
                for place in [place for place in entry[1] if place[0] < begin + size and begin < sum(place)]:
                    del entry[1][place]
        return self._together([self._keep(tensor, None) for tensor in tensors])

    def copied(self, source: Any, copy: Any) -> None:
        """Note a copy: it holds what its source does, if that is known."""
        if type(source) is not torch.Tensor or source.layout is not torch.strided:
            return
        if source.untyped_storage()._cdata in self._storages and source.stride() == copy.stride():
            number = self._known(source)
            if number is not None:
                self._keep(copy, number)

    def _together(self, numbers: Sequence[int | None]) -> int | None:
        some = [number for number in numbers if number is not None]
        if not some or len(some) < len(numbers):
            return None
        if len(some) == 1:
            return some[0]
        key = tuple(some)
        if key not in self._several:
            self._several[key] = self._new()
        return self._several[key]

    def _of(self, tensor: torch.Tensor) -> int | None:
        number = self._known(tensor)
        return self._keep(tensor, None) if number is None else number

    def _known(self, tensor: torch.Tensor) -> int | None:
        version = _version(tensor)
        entry = self._storages.get(tensor.untyped_storage()._cdata) if version is not None else None
        if entry is None:
            return None
        at_version, number = entry[1].get(_place(tensor), (None, None))
        return number if at_version == version else None

    def _keep(self, tensor: torch.Tensor, number: int | None) -> int | None:
        """Have the tensor hold that content from now on, a new one for None."""
        version = _version(tensor)
        if version is None:
            return None
        storage = tensor.untyped_storage()
        entry = self._storages.get(storage._cdata)
        if entry is None:
            if len(self._storages) >= _MOST:
                self._storages = {}
            reference: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            entry = self._storages[storage._cdata] = (reference, {})
        number = self._new() if number is None else number
        entry[1][_place(tensor)] = version, number
        return number

    def _new(self) -> int:
        self._count += 1
        return self._count


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    itemsize = tensor.element_size()
    return int(tensor.storage_offset()) * itemsize, tensor.numel() * itemsize


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor has memory of its own."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    return not tensor.is_meta and tensor.numel() > 0


def _version(tensor: torch.Tensor) -> int | None:
    """Return how often the tensor's memory was written to; None of what cannot be followed."""
    if not _is_plain(tensor) or tensor.is_inference() or not is_dense(tensor):
        return None
    version: int = tensor._version
    return version
