"""Eight numbers that stand for a tensor: linear, and by the place of each element in the whole.

Each is a sum over all elements, weighted by +1 or -1. The sign of an element is the product of one sign for
each of its indices. Those signs are fixed by the index, the dimension and which of the eight numbers it is.
All ranks and devices agree on them, and no random number is drawn. A shard therefore knows its summand alone.
The sketches of shards add up to that of the whole, those of parts of a sum to that of the sum.

All is summed up in float64, in pieces, so that no tensor is copied whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from shardtoll.ledger.records.value import SKETCH
from shardtoll.profiler.live.cause.call import is_ordinary

NUMBERS: Final = SKETCH + 2
"""Sum of squares, the sketch, and 1 if the tensor holds one value throughout."""
FOLD: Final = 4096
"""An index is split into (index // FOLD, index % FOLD), each with a sign: tables stay small."""
_PIECE: Final = 1 << 20
"""Elements summed up at once."""
_DIMS: Final = 4
"""Dimensions that most tensors have at most."""
_WIDE: Final = 16
"""The dimension summed up first should be as wide, as each row of it leaves eight numbers."""
_MIX: Final = (0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
"""Multipliers of splitmix64, signed: they spread consecutive numbers over all bits."""


def has_values(tensor: torch.Tensor) -> bool:
    """Whether the tensor's own elements lie in memory: no fake, meta or sparse one, no subclass's inside."""
    if isinstance(tensor, FakeTensor) or tensor.is_meta or tensor.layout is not torch.strided:
        return False
    return not tensor.is_quantized and is_ordinary(type(tensor))


class Signs:
    """The signs on one device: tables of float64 [indices, 8], made as they are needed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._low: dict[int, torch.Tensor] = {}
        self._high: dict[int, torch.Tensor] = {}

    def prepare(self) -> None:
        """Make the tables most tensors need: made in a step they would be of that moment's stream."""
        for dim in range(_DIMS):
            self.low(dim)
            self.high(dim, 1)

    def low(self, dim: int) -> torch.Tensor:
        """Return the signs of `index % FOLD`, all of them."""
        if dim not in self._low:
            self._low[dim] = self._made(FOLD, 2 * dim)
        return self._low[dim]

    def high(self, dim: int, end: int) -> torch.Tensor:
        """Return the signs of `index // FOLD`, at least `end` of them."""
        signs = self._high.get(dim)
        if signs is None or signs.shape[0] < end:
            self._high[dim] = signs = self._made(max(16, 2 * end), 2 * dim + 1)
        return signs

    def of(self, dim: int, start: int, length: int) -> torch.Tensor:
        """Return the signs of `length` indices from `start` on."""
        block, within = divmod(start, FOLD)
        if within + length <= FOLD:
            return self.low(dim)[within : within + length] * self.high(dim, block + 1)[block]
        index = torch.arange(start, start + length, device=self._device)
        return self.low(dim)[index % FOLD] * self.high(dim, (start + length) // FOLD + 1)[index // FOLD]

    def _made(self, count: int, salt: int) -> torch.Tensor:
        # Computed on the device: to copy them there the host would wait for it. Whole numbers wrap.
        index = torch.arange(1, count + 1, dtype=torch.int64, device=self._device)[:, None]
        which = torch.arange(1, SKETCH + 1, dtype=torch.int64, device=self._device)
        mixed = index * _MIX[0] + (which * 1_000_003 + (salt + 1) * 998_244_353) * _MIX[1]
        mixed = (mixed ^ (mixed >> 30)) * _MIX[1]
        mixed = (mixed ^ (mixed >> 27)) * _MIX[2]
        return (((mixed ^ (mixed >> 31)) >> 11 & 1) * 2 - 1).to(torch.float64)


def numbers_of(tensor: torch.Tensor, starts: Sequence[int] | None, signs: Signs) -> torch.Tensor:
    """Return float64 [10]: sum of squares, sketch, constant; on the tensor's device, without waiting for it.

    `starts`: index of the first element in the whole tensor, by dimension. None if unknown; the sketch is
    then NaN. If the tensor is not finite, neither are the numbers.
    """
    x = tensor.detach()
    numbers = torch.zeros(NUMBERS, dtype=torch.float64, device=x.device)
    if x.numel() == 0:
        numbers[-1] = 1
        return numbers
    first: Any = x[(0,) * x.dim()]
    numbers[-1] = (x == first).all()
    starts = None if starts is None else list(starts)
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
        starts = None if starts is None else [*starts, 0]
    assert starts is None or len(starts) == x.dim()
    if x.dim() == 0:
        x = x.reshape(1)
        starts = None if starts is None else [0]
    wide = x.dim() - 1
    if x.shape[wide] < _WIDE:
        wide = max(range(x.dim()), key=lambda dim: x.shape[dim])
    rest = [dim for dim in range(x.dim()) if dim != wide]
    rows = x.movedim(wide, -1).reshape(-1, x.shape[wide])
    offsets = starts if starts is not None else [0] * x.dim()
    sums = _summed(rows, wide, offsets[wide], signs, numbers)
    for dim in reversed(rest):
        sums = sums.view(-1, x.shape[dim], SKETCH)
        sums = (sums * signs.of(dim, offsets[dim], x.shape[dim])).sum(1)
    numbers[1 : 1 + SKETCH] = sums.view(SKETCH) if starts is not None else torch.nan
    return numbers


def _summed(rows: torch.Tensor, dim: int, start: int, signs: Signs, numbers: torch.Tensor) -> torch.Tensor:
    """Return [rows, 8], the last dimension summed up with its signs; squares are added to `found[0]`."""
    count, length = rows.shape
    sums = torch.zeros((count, SKETCH), dtype=torch.float64, device=rows.device)
    low, high = signs.low(dim), signs.high(dim, (start + length) // FOLD + 1)
    at_once = max(1, _PIECE // min(length, FOLD))
    for top in range(0, count, at_once):
        some = rows[top : top + at_once]
        for begin, end in _pieces(start, length, max(1, _PIECE // (FOLD * some.shape[0]))):
            part = some[:, begin:end].to(torch.float64)
            flat = part.reshape(-1)
            numbers[0] += flat.dot(flat)
            block, within = divmod(start + begin, FOLD)
            whole = (end - begin) // FOLD
            if whole:
                folded = part.reshape(-1, whole, FOLD) @ low
                sums[top : top + at_once] += (folded * high[block : block + whole]).sum(1)
            else:
                sums[top : top + at_once] += part @ low[within : within + end - begin] * high[block]
    return sums


def _pieces(start: int, length: int, blocks: int) -> Iterator[tuple[int, int]]:
    """Cut [0, length) at places that with `start` are multiples of FOLD: up to `blocks` folds, or a part."""
    begin = 0
    while begin < length:
        to_edge = -(start + begin) % FOLD
        left = length - begin
        if to_edge == 0 and left >= FOLD:
            step = min(left // FOLD, blocks) * FOLD
        else:
            step = min(left, to_edge or FOLD)
        yield begin, begin + step
        begin += step
