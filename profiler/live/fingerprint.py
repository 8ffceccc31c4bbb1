"""Cheap fingerprints of tensor values: equal bytes give equal numbers, moved bytes give others.

A tensor is sampled with a fixed stride (at most `SAMPLE` elements), its bits are taken as whole numbers and
summed with a weight for each position, all modulo 2**64. On an accelerator nothing is read back while
the step runs: the sums stay on the device, are copied back behind it and read once they have arrived.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import FakeTensor

from shardtoll.profiler.live.print_readback import Arriving, CudaReadback, PlainReadback, Readback

SAMPLE: Final = 4096
"""Elements sampled from a tensor: some 4 us on a CPU core, whatever the tensor's size."""

_MULTIPLIER: Final = 0x9E3779B97F4A7C15
"""2**64 / golden ratio, odd: consecutive multiples are spread evenly (Knuth, TAOCP 6.4)."""

_SIGNED_MULTIPLIER: Final = _MULTIPLIER - (1 << 64)
"""The same, as a 64-bit number with a sign."""

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_IN_PLACE: Final[dict[torch.dtype, tuple[str, int]]] = {
    dtype: (np.dtype(kind).str, np.dtype(kind).itemsize)
    for kind, dtypes in (
        (np.uint8, (torch.uint8, torch.int8, torch.bool)),
        (np.int16, (torch.int16, torch.float16, torch.bfloat16)),
        (np.int32, (torch.int32, torch.float32)),
        (np.int64, (torch.int64, torch.float64)),
    )
    for dtype in dtypes
}
"""Element types whose bits numpy can read where they lie: how it names those bits, and bytes an element."""


_ALL_BITS: Final = (1 << 64) - 1


def _weights() -> npt.NDArray[np.int64]:
    count = np.arange(1, SAMPLE + 1, dtype=np.uint64)
    weights: npt.NDArray[np.int64] = (count * np.uint64(_MULTIPLIER) ^ count << np.uint64(17)).view(np.int64)
    return weights


def _weights_made_on(device: torch.device) -> torch.Tensor:
    """Return the weights, computed on the device: to copy them there the host would wait for it."""
    count = torch.arange(1, SAMPLE + 1, dtype=torch.int64, device=device)
    return (count * _SIGNED_MULTIPLIER) ^ (count << 17)


_WEIGHTS: Final = _weights()
_WEIGHT_SUMS: Final = np.concatenate([np.zeros(1, np.int64), np.cumsum(_WEIGHTS)])
"""Sum of the first k weights modulo 2**64, for the test of constancy."""


class Fingerprint(NamedTuple):
    """A value's number, and whether the sample holds one value throughout (then equality says little)."""

    number: int
    constant: bool


def _fingerprints(sums: Sequence[tuple[int, int, int, int]]) -> list[Fingerprint]:
    """Return the prints of totals, first values, elements sampled and elements."""
    total, first, sampled, numel = np.array(sums, np.int64).reshape(-1, 4).T
    # Integer overflow wraps, which is the arithmetic modulo 2**64 that is wanted.
    numbers, constant = total * 31 + numel, total == first * _WEIGHT_SUMS[sampled]
    return list(map(Fingerprint, numbers.tolist(), constant.tolist()))


_UNDO: Final = pow(31 * int(_WEIGHTS[0]), -1, 1 << 64)


def float_of(number: int) -> float | None:
    """Return the one float32 that has this print, which is an affine function of its bits; else None."""
    bits = (number - 1) * _UNDO & _ALL_BITS
    signed = bits - (1 << 64) if bits >> 63 else bits
    if not -(1 << 31) <= signed < 1 << 31:
        return None
    value = float(np.array(signed, np.int32).view(np.float32))
    return value if math.isfinite(value) else None


def _bits(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return at most SAMPLE elements as whole numbers in one dimension; None where there are none to read."""
    if isinstance(tensor, FakeTensor) or tensor.device.type == "meta":
        return None
    if tensor.layout is not torch.strided or tensor.numel() == 0 or tensor.is_quantized:
        return None
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    size = _BITS.get(tensor.element_size())
    if size is None:
        return None
    if not tensor.is_contiguous():
        tensor = _in_memory_order(tensor)
    flat = tensor.view(size).view(-1)
    return flat if flat.numel() <= SAMPLE else flat[:: -(-flat.numel() // SAMPLE)]


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a transposed tensor as it lies in memory: every rank that has it has it like this.

    Other views are sliced to the sample's size along their longest dimension and copied.
    """
    by_stride = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    tensor = tensor.permute(by_stride)
    if tensor.is_contiguous():
        return tensor
    longest = max(range(tensor.dim()), key=tensor.size)
    keep = max(1, SAMPLE * tensor.size(longest) // tensor.numel())
    step = -(-tensor.size(longest) // keep)
    index = [slice(None)] * tensor.dim()
    index[longest] = slice(None, None, step)
    return tensor[tuple(index)].contiguous()


class _Memory:
    """Memory that numpy is to see as an array, by its array interface."""

    __slots__ = ("__array_interface__",)

    __array_interface__: dict[str, Any]


def _lying(tensor: torch.Tensor) -> npt.NDArray[Any] | None:
    """Return the bits that `_bits` does, seen where they lie; None where it takes torch to read them.

    Half a dozen calls into torch cost more than the sum itself. The array is a view of the user's memory
    and must not outlive the call; unlike `Tensor.numpy` it leaves the storage resizable.
    """
    kind = _IN_PLACE.get(tensor.dtype)
    if kind is None or not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_neg():
        return None
    if not tensor.is_contiguous():
        stride = tensor.stride()
        if len(stride) != 2 or stride[0] != 1 or stride[1] != tensor.shape[0]:
            return None
    numel, address = tensor.numel(), tensor.data_ptr()
    if numel == 0 or address == 0:
        return None
    memory = _Memory()
    if numel <= SAMPLE:
        size, strides = numel, None
    else:
        step = -(-numel // SAMPLE)
        size, strides = -(-numel // step), (step * kind[1],)
    memory.__array_interface__ = {
        "data": (address, True),
        "shape": (size,),
        "strides": strides,
        "typestr": kind[0],
        "version": 3,
    }
    return np.asarray(memory)


@dataclass(frozen=True, slots=True)
class _OnDevice:
    """A fingerprint whose sums are still on the device."""

    ticket: int
    pair: torch.Tensor
    """Total and first value."""
    sampled: int
    numel: int


@dataclass(slots=True)
class TakenPrints:
    """The fingerprints of one region, on their way from the device."""

    _prints: list[tuple[int, int, int, int] | None]
    _arriving: list[tuple[Arriving, list[_OnDevice]]] = field(default_factory=list)

    def ready(self) -> bool:
        """Whether all are there. Never blocks."""
        return all(arriving.ready() for arriving, _ in self._arriving)

    def read(self) -> list[Fingerprint]:
        """Return all fingerprints by ticket; blocks until they are there."""
        for arriving, entries in self._arriving:
            for entry, (total, first) in zip(entries, arriving.read(), strict=True):
                self._prints[entry.ticket] = (total, first, entry.sampled, entry.numel)
        self._arriving = []
        found = _fingerprints([sums for sums in self._prints if sums is not None])
        assert len(found) == len(self._prints)
        return found


@dataclass(slots=True)
class _Side:
    """What is kept for one device."""

    weights: torch.Tensor
    readback: Readback
    entries: list[_OnDevice] = field(default_factory=list)
    streams: dict[Hashable, None] = field(default_factory=dict)
    """Streams on which sums were made, in order."""


@dataclass(slots=True)
class Fingerprints:
    """Takes fingerprints during a step; `collect` returns them after it."""

    _prints: list[tuple[int, int, int, int] | None] = field(default_factory=list)
    """Total, first value, elements sampled, elements; None where the device still has the first two."""
    _sides: dict[torch.device, _Side] = field(default_factory=dict)

    def prepare(self, device: torch.device) -> None:
        """Get ready for tensors of an accelerator, so that the first step need not."""
        if device.type == "cuda":
            # Tensors name their device by its number, models and groups need not.
            index: int | None = device.index
            self._side(torch.device("cuda", torch.cuda.current_device() if index is None else index))

    def take(self, tensor: torch.Tensor) -> int | None:
        """Fingerprint a tensor; returns a ticket for `collect`'s list, None where it has no plain values."""
        ticket = len(self._prints)
        lying = _lying(tensor)
        if lying is not None:
            # Integer overflow wraps, which is the arithmetic modulo 2**64 that is wanted.
            sampled = lying.size
            total = int(lying.astype(np.int64).dot(_WEIGHTS[:sampled]))
            self._prints.append((total, lying.item(0), sampled, tensor.numel()))
            return ticket
        bits = _bits(tensor)
        if bits is None:
            return None
        sampled = bits.numel()
        if bits.device.type == "cpu":
            # A copy: numpy() on the user's own memory would make its storage unresizable, and FSDP resizes.
            values = bits.to(torch.int64, copy=True).numpy()
            total = int(np.dot(values, _WEIGHTS[:sampled]))
            self._prints.append((total, int(values[0]), sampled, tensor.numel()))
            return ticket
        return self._take_on(self._side(bits.device), bits, tensor.numel())

    def _take_on(self, side: _Side, bits: torch.Tensor, numel: int) -> int | None:
        if side.readback.capturing():
            return None
        ticket = len(self._prints)
        wide = bits.to(torch.int64)
        pair = torch.stack([(wide * side.weights[: bits.numel()]).sum(), wide[0]])
        self._prints.append(None)
        side.entries.append(_OnDevice(ticket, pair, bits.numel(), numel))
        side.streams[side.readback.stream()] = None
        return ticket

    def _side(self, device: torch.device) -> _Side:
        found = self._sides.get(device)
        if found is None:
            readback = CudaReadback(device) if device.type == "cuda" else PlainReadback()
            found = self._sides[device] = _Side(_weights_made_on(device), readback)
        return found

    def collect(self) -> TakenPrints:
        """Return all fingerprints taken since the last time, and forget them. Blocks for no device."""
        arriving: list[tuple[Arriving, list[_OnDevice]]] = []
        for side in self._sides.values():
            if side.entries:
                pairs = [entry.pair for entry in side.entries]
                arriving.append((side.readback.start(pairs, list(side.streams)), side.entries))
            side.entries, side.streams = [], {}
        prints, self._prints = self._prints, []
        return TakenPrints(prints, arriving)

    def read(self) -> list[Fingerprint]:
        """Return all fingerprints taken since the last time by ticket; blocks until they are there."""
        return self.collect().read()


def combine(numbers: list[int]) -> int:
    """Return one number for several fingerprints, in order."""
    total = 0
    for number in numbers:
        total = total * 1_000_003 + number & _ALL_BITS
    return total - (1 << 64) if total >> 63 else total
