"""Cheap fingerprints of tensor values: equal bytes give equal numbers, moved bytes give others.

A tensor is sampled with a fixed stride (at most `SAMPLE` elements), its bits are taken as whole numbers and
summed with a weight for each position, all modulo 2**64. On an accelerator nothing is read back while
the step runs: the sums stay on the device and are read once, after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

SAMPLE: Final = 4096
"""Elements sampled from a tensor: 7 to 9 us on a CPU core, whatever the tensor's size."""

_MULTIPLIER: Final = 0x9E3779B97F4A7C15
"""2**64 / golden ratio, odd: consecutive multiples are spread evenly (Knuth, TAOCP 6.4)."""

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _signed64(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _weights() -> npt.NDArray[np.int64]:
    count = np.arange(1, SAMPLE + 1, dtype=np.uint64)
    weights: npt.NDArray[np.int64] = (count * np.uint64(_MULTIPLIER) ^ count << np.uint64(17)).view(np.int64)
    return weights


_WEIGHTS: Final = _weights()
_WEIGHT_SUMS: Final = [0, *np.cumsum(_WEIGHTS).tolist()]
"""Sum of the first k weights modulo 2**64, for the test of constancy."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A value's number, and whether the sample holds one value throughout (then equality says little)."""

    number: int
    constant: bool


def _fingerprint(total: int, first: int, sampled: int, numel: int) -> Fingerprint:
    constant = total == _signed64(first * _WEIGHT_SUMS[sampled])
    return Fingerprint(_signed64(total * 31 + numel), constant)


def _bits(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return at most SAMPLE elements as whole numbers in one dimension; None where there are none to read."""
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


@dataclass(slots=True)
class Fingerprints:
    """Takes fingerprints during a step; `read` returns them after it."""

    _prints: list[Fingerprint | None] = field(default_factory=list)
    _on_device: list[tuple[int, torch.Tensor, int, int]] = field(default_factory=list)
    """(ticket, tensor of total and first value, elements sampled, elements)."""
    _device_weights: dict[torch.device, torch.Tensor] = field(default_factory=dict)

    def take(self, tensor: torch.Tensor) -> int | None:
        """Fingerprint a tensor; returns a ticket for `read`, None where it has no plain values."""
        bits = _bits(tensor)
        if bits is None:
            return None
        ticket = len(self._prints)
        sampled = bits.numel()
        if bits.device.type == "cpu":
            # A copy: numpy() on the user's own memory would make its storage unresizable, and FSDP resizes.
            values = bits.to(torch.int64, copy=True).numpy()
            # Integer overflow wraps, which is the arithmetic modulo 2**64 that is wanted.
            total = int(np.dot(values, _WEIGHTS[:sampled]))
            self._prints.append(_fingerprint(total, int(values[0]), sampled, tensor.numel()))
        else:
            wide = bits.to(torch.int64)
            pair = torch.stack([(wide * self._weights_on(bits.device)[:sampled]).sum(), wide[0]])
            self._prints.append(None)
            self._on_device.append((ticket, pair, sampled, tensor.numel()))
        return ticket

    def _weights_on(self, device: torch.device) -> torch.Tensor:
        found = self._device_weights.get(device)
        if found is None:
            found = self._device_weights[device] = torch.from_numpy(_WEIGHTS.copy()).to(device)
        return found

    def read(self) -> list[Fingerprint]:
        """Return all fingerprints by ticket, and forget them. One read-back for each device."""
        by_device: dict[torch.device, list[tuple[int, torch.Tensor, int, int]]] = {}
        for entry in self._on_device:
            by_device.setdefault(entry[1].device, []).append(entry)
        for entries in by_device.values():
            rows = torch.stack([pair for _, pair, _, _ in entries]).tolist()
            for (ticket, _, sampled, numel), (total, first) in zip(entries, rows, strict=True):
                self._prints[ticket] = _fingerprint(total, first, sampled, numel)
        found = [print_ for print_ in self._prints if print_ is not None]
        assert len(found) == len(self._prints)
        self._prints, self._on_device = [], []
        return found


def combine(numbers: list[int]) -> int:
    """Return one number for several fingerprints, in order."""
    total = 0
    for number in numbers:
        total = _signed64(total * 1_000_003 + number)
    return total
