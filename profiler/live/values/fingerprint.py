"""Cheap fingerprints of tensor values: equal bytes give equal numbers, moved bytes give others.

Each fingerprint states what its equality is worth: nothing, if the tensor holds one value or a few
throughout, or NaN and infinity. A tensor is sampled with a fixed stride (at most `SAMPLE` elements). Its bits
are taken as whole numbers and summed with a weight for each position, all modulo 2**64. On an accelerator
nothing is read back while the step runs. The sums stay on the device, are copied back behind it and read once
they have arrived.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import FakeTensor

from shardtoll.profiler.live.values.print_readback import Arriving, CudaReadback, PlainReadback, Readback

SAMPLE: Final = 4096
"""Elements sampled from a tensor: some 4 us on a CPU core, whatever the tensor's size."""

_MULTIPLIER: Final = 0x9E3779B97F4A7C15
"""2**64 / golden ratio, odd: consecutive multiples are spread evenly (Knuth, TAOCP 6.4)."""

_SIGNED_MULTIPLIER: Final = _MULTIPLIER - (1 << 64)
"""The same, as a 64-bit number with a sign."""

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

LOOKED_AT: Final = 31
"""Elements of a sample, evenly spread, whose different values are counted."""

FEW: Final = 3
"""Fewer values than these, in as many elements: a mask, a one-hot row, zeros with an exception."""

_EXPONENT: Final = {
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
    torch.float32: 0x7F800000,
    torch.float64: 0x7FF0000000000000,
    torch.complex64: 0x7F800000,
    torch.complex128: 0x7FF0000000000000,
}
"""Bits of an element that are all set in NaN and infinity, and only there."""

_rehearsed: set[torch.device] = set()
"""Devices on which the kernels of prints are loaded by now."""
_FLOATS: Final = tuple(dtype for dtype in _EXPONENT if not dtype.is_complex)

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


class Fingerprint(NamedTuple):
    """A value's number, and what equality of it is worth."""

    number: int
    constant: bool
    """Whether the sample holds one value, or only a few: then equality proves nothing."""
    finite: bool = True
    """False if NaN or infinity is in the sample: these equal each other, which proves nothing either."""


_Sums: TypeAlias = tuple[int, list[int], int, int, bool]
"""Facts about a sample that are kept until the step is over. They are its total; bits of up to `LOOKED_AT` of
its elements; the tensor's elements; and `_EXPONENT`, 0 for whole numbers. The last one is False if all of it
was looked at and is not finite."""


def _fingerprints(sums: Sequence[_Sums]) -> list[Fingerprint]:
    """Return the prints of what was kept."""
    if not sums:
        return []
    totals, counts = (np.array([each[place] for each in sums], np.int64) for place in (0, 2))
    # Integer overflow wraps, which is the arithmetic modulo 2**64 that is wanted.
    numbers = (totals * 31 + counts).tolist()
    return [Fingerprint(number, *_worth(each)) for number, each in zip(numbers, sums, strict=True)]


def _worth(sums: _Sums) -> tuple[bool, bool]:
    """Return whether the sample holds too few values, and whether it is finite."""
    _, looked_at, _, exponent, finite = sums
    values = set(looked_at)
    if finite and exponent:
        finite = all(bits & exponent != exponent for bits in values)
    return len(values) == 1 or len(values) < min(FEW, len(looked_at)), finite


def _looked_at(sampled: int) -> slice:
    """Return which elements of a sample are looked at."""
    return slice(None, None, -(-sampled // LOOKED_AT))


_UNDO: Final = pow(31 * int(_WEIGHTS[0]), -1, 1 << 64)


def float_of(number: int) -> float | None:
    """Return the one float32 that has this print, which is an affine function of its bits; else None."""
    bits = (number - 1) * _UNDO & _ALL_BITS
    signed = bits - (1 << 64) if bits >> 63 else bits
    if not -(1 << 31) <= signed < 1 << 31:
        return None
    value = float(np.array(signed, np.int32).view(np.float32))
    return value if math.isfinite(value) else None


def holds_ones(print_of: Fingerprint, numel: int) -> bool | None:
    """Return whether whole numbers with this print are all one; None if only a sample was looked at."""
    if not 0 < numel <= SAMPLE:
        return None
    # Integer overflow wraps, which is the arithmetic modulo 2**64 that is wanted.
    total = int(_WEIGHTS[:numel].sum())
    return print_of == _fingerprints([(total, [1], numel, 0, True)])[0]


def _bits(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return at most SAMPLE elements as whole numbers in one dimension; None if there are none to read."""
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
    """Return the bits that `_bits` does, seen where they lie; None if it takes torch to read them.

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


def _is_finite(bits: npt.NDArray[np.int64], exponent: int) -> bool:
    """Return whether no element of a sample is NaN or infinity."""
    return not bool(((bits & exponent) == exponent).any())


@dataclass(frozen=True, slots=True)
class _OnDevice:
    """A fingerprint whose sums are still on the device."""

    ticket: int
    pairs: torch.Tensor
    """The total and the elements that are looked at, two by two; the last one twice if they are even."""
    looked_at: int
    numel: int
    exponent: int


@dataclass(slots=True)
class TakenPrints:
    """The fingerprints of one region, on their way from the device."""

    _prints: list[_Sums | None]
    _arriving: list[tuple[Arriving, list[_OnDevice]]] = field(default_factory=list)

    def ready(self) -> bool:
        """Whether all are there. Never blocks."""
        return all(arriving.ready() for arriving, _ in self._arriving)

    def read(self) -> list[Fingerprint]:
        """Return all fingerprints by ticket; blocks until they are there."""
        for arriving, entries in self._arriving:
            pairs = iter(arriving.read())
            for entry in entries:
                total, *bits = [number for _ in range(len(entry.pairs)) for number in next(pairs)]
                bits = bits[: entry.looked_at]
                self._prints[entry.ticket] = (total, bits, entry.numel, entry.exponent, True)
        self._arriving = []
        prints = _fingerprints([sums for sums in self._prints if sums is not None])
        assert len(prints) == len(self._prints)
        return prints


@dataclass(slots=True)
class _Side:
    """State of one device."""

    weights: torch.Tensor
    readback: Readback
    entries: list[_OnDevice] = field(default_factory=list)
    streams: dict[Hashable, None] = field(default_factory=dict)
    """Streams on which sums were made, in order."""


@dataclass(slots=True)
class Fingerprints:
    """Takes fingerprints during a step; `collect` returns them after it."""

    _prints: list[_Sums | None] = field(default_factory=list)
    """None if the device still has them."""
    _sides: dict[torch.device, _Side] = field(default_factory=dict)

    def prepare(self, device: torch.device) -> None:
        """Get ready for tensors of an accelerator, so that the first step need not."""
        if device.type == "cuda":
            # Tensors name their device by its number, models and groups need not.
            index: int | None = device.index
            of = torch.device("cuda", torch.cuda.current_device() if index is None else index)
            self._side(of)
            if of not in _rehearsed:
                _rehearsed.add(of)
                # On a card that is full the first surveyed step loads them, as it would have.
                with contextlib.suppress(torch.OutOfMemoryError):
                    self._rehearse(of)

    def _rehearse(self, device: torch.device) -> None:
        """Take a print of each kind of tensor, and forget them.

        CUDA loads a kernel when it is first launched, and may wait until the device is idle to do so. In the
        first surveyed step the host would stand still until all its launched work was done. The compute that
        really hides a collective could then not be seen.
        """
        for dtype in (*_BITS.values(), *_FLOATS):
            for numel in (1, SAMPLE, 2 * SAMPLE):
                self.take(torch.zeros(numel, dtype=dtype, device=device))
            # Copied in their own type, and in the order of their elements.
            odd = torch.zeros((4, 3, 2), dtype=dtype, device=device)[:, ::2].transpose(0, 2)
            self.take(odd)
            self.take_in_order(odd)
        self.read()

    def take(self, tensor: torch.Tensor, *, thorough: bool = False, numel: int | None = None) -> int | None:
        """Fingerprint a tensor; returns a ticket for `collect`'s list, None if it has no plain values.

        `thorough`: look for NaN and infinity in the whole sample, if it lies on the host. `numel`: elements
        of what the tensor is a sample of.
        """
        if isinstance(tensor, FakeTensor):
            return None
        ticket = len(self._prints)
        lying = _lying(tensor)
        if lying is not None:
            # Integer overflow wraps, which is the arithmetic modulo 2**64 that is wanted.
            sampled, dtype = lying.size, tensor.dtype
            wide = lying.astype(np.int64)
            total = int(wide.dot(_WEIGHTS[:sampled]))
            looked_at = wide[_looked_at(sampled)].tolist()
            exponent = _EXPONENT.get(dtype, 0)
            finite = not (thorough and exponent) or _is_finite(wide, exponent)
            self._prints.append((total, looked_at, numel or tensor.numel(), exponent, finite))
            return ticket
        bits = _bits(tensor)
        if bits is None:
            return None
        exponent = _EXPONENT.get(tensor.dtype, 0)
        if bits.device.type == "cpu":
            # A copy: numpy() on the user's own memory would make its storage unresizable, and FSDP resizes.
            values = bits.to(torch.int64, copy=True).numpy()
            total = int(np.dot(values, _WEIGHTS[: len(values)]))
            looked_at = values[_looked_at(len(values))].tolist()
            finite = not (thorough and exponent) or _is_finite(values, exponent)
            self._prints.append((total, looked_at, numel or tensor.numel(), exponent, finite))
            return ticket
        return self._take_on(self._side(bits.device), bits, numel or tensor.numel(), exponent)

    def take_in_order(self, tensor: torch.Tensor) -> int | None:
        """Fingerprint a strided tensor in the order of its elements, however it lies in memory."""
        numel = tensor.numel()
        if tensor.is_contiguous() or numel == 0:
            return self.take(tensor)
        step = -(-numel // SAMPLE)
        index = torch.arange(0, numel, step, device=tensor.device)
        offsets = torch.zeros_like(index)
        for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
            offsets += index % size * stride
            index = index // size
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        reach = 1 + sum((size - 1) * stride for size, stride in steps)
        flat = tensor.as_strided((reach,), (1,), tensor.storage_offset())
        return self.take(flat[offsets], numel=numel)

    def _take_on(self, side: _Side, bits: torch.Tensor, numel: int, exponent: int = 0) -> int | None:
        if side.readback.capturing():
            return None
        ticket = len(self._prints)
        wide = bits.to(torch.int64)
        total = (wide * side.weights[: bits.numel()]).sum()
        looked_at = wide[_looked_at(bits.numel())]
        count = looked_at.numel()
        last = looked_at[-1:] if count % 2 == 0 else looked_at[:0]
        pairs = torch.cat([total.view(1), looked_at, last]).view(-1, 2)
        self._prints.append(None)
        side.entries.append(_OnDevice(ticket, pairs, count, numel, exponent))
        side.streams[side.readback.stream()] = None
        return ticket

    def _side(self, device: torch.device) -> _Side:
        side = self._sides.get(device)
        if side is None:
            readback = CudaReadback(device) if device.type == "cuda" else PlainReadback()
            side = self._sides[device] = _Side(_weights_made_on(device), readback)
        return side

    def collect(self) -> TakenPrints:
        """Return all fingerprints taken since the last time, and forget them. Blocks for no device."""
        arriving: list[tuple[Arriving, list[_OnDevice]]] = []
        for side in self._sides.values():
            if side.entries:
                pairs = [entry.pairs for entry in side.entries]
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
