"""Fingerprints on their way back from the device: copied behind the step, read when they have arrived.

The sums lie on the device, made on whichever stream took them. A stream of our own waits for those streams,
copies the sums into pinned memory and records an event. Neither the host nor any stream of the program waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import torch

_cuda: Any = torch.cuda  # torch leaves these untyped
_LEAST_ROWS: Final = 1024

Sums: TypeAlias = Sequence[tuple[int, int]]
"""Whole numbers two by two, in the order in which they were handed over."""


class Arriving(Protocol):
    """Sums that are being copied to the host."""

    def ready(self) -> bool:
        """Whether they are there. Never blocks."""

    def read(self) -> Sums:
        """Return them; blocks until they are there."""


class Readback(Protocol):
    """How sums come back from one device."""

    def stream(self) -> Hashable:
        """Return this thread's current stream: the one on which sums are being made now."""

    def capturing(self) -> bool:
        """Whether that stream is recorded into a graph, which must not contain a sum."""

    def start(self, pairs: Sequence[torch.Tensor], streams: Collection[Any]) -> Arriving:
        """Begin to copy the pairs, of shape [2] or [n, 2], once `streams` have done what they were given."""


def _together(pairs: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([pair.view(-1, 2) for pair in pairs])


class CudaReadback:
    """Copies from one CUDA device on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = _cuda.Stream(device)
        # Pinning memory may stall the device: the first block is made here, before any step.
        self._free: list[torch.Tensor] = [self._pinned(_LEAST_ROWS)]

    @staticmethod
    def _pinned(rows: int) -> torch.Tensor:
        return torch.empty((rows, 2), dtype=torch.int64, pin_memory=True)

    def stream(self) -> Hashable:
        """Return this thread's current stream of the device."""
        stream: Hashable = _cuda.current_stream(self._stream.device)
        return stream

    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured on the current stream."""
        return torch.cuda.is_current_stream_capturing()

    def start(self, pairs: Sequence[torch.Tensor], streams: Collection[Any]) -> _Copied:
        """Begin to copy the pairs once `streams` have done what they were given so far."""
        for stream in streams:
            self._stream.wait_stream(stream)
        rows = sum(pair.numel() for pair in pairs) // 2
        fitting = [block for block in self._free if block.shape[0] >= rows]
        if fitting:
            block = fitting[0]
            # By identity: comparing tensors compares their values.
            self._free = [other for other in self._free if other is not block]
        else:
            block = self._pinned(max(_LEAST_ROWS, 1 << (rows - 1).bit_length()))
        with torch.cuda.stream(self._stream):
            stacked = _together(pairs)
            block[:rows].copy_(stacked, non_blocking=True)
            done = _cuda.Event()
            done.record(self._stream)
        # The pairs came from other streams' memory: held until the copy is done, so that it is not given
        # away.
        return _Copied(block, rows, done, [*pairs, stacked], self._free.append)


@dataclass(slots=True)
class _Copied:
    block: torch.Tensor
    rows: int
    done: Any
    kept: list[torch.Tensor]
    give_back: Callable[[torch.Tensor], None]

    def ready(self) -> bool:
        return bool(self.done.query())

    def read(self) -> Sums:
        self.done.synchronize()
        sums = [(int(total), int(first)) for total, first in self.block[: self.rows].tolist()]
        self.give_back(self.block)
        self.kept.clear()
        return sums


class PlainReadback:
    """Copies for devices that only have a blocking copy: other accelerators, and the CPU in tests."""

    def stream(self) -> Hashable:
        """Return nothing that distinguishes streams: such a copy waits by itself."""
        return None

    def capturing(self) -> bool:
        """No graph is known of."""
        return False

    def start(self, pairs: Sequence[torch.Tensor], streams: Collection[Any]) -> _Plain:  # noqa: ARG002
        """Hold the pairs until they are read."""
        return _Plain(list(pairs))


@dataclass(slots=True)
class _Plain:
    pairs: list[torch.Tensor]

    def ready(self) -> bool:
        return True

    def read(self) -> Sums:
        return [(int(total), int(first)) for total, first in _together(self.pairs).tolist()]
