"""Takes what tensors hold during a step; `collect` returns the rows after it.

As with fingerprints nothing is waited for. On an accelerator the numbers stay on the device, are copied back
behind the step and read once they have arrived.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from torch.utils import _python_dispatch

from shardtoll.ledger.records.value import SKETCH_COLUMNS, Value
from shardtoll.profiler.live.cause.positions import starts_of
from shardtoll.profiler.live.values.blank import blank
from shardtoll.profiler.live.values.fingerprint import Fingerprints, TakenPrints
from shardtoll.profiler.live.values.print_readback import Arriving, CudaReadback, PlainReadback, Readback
from shardtoll.profiler.live.values.sketch import NUMBERS, Signs, has_values, numbers_of

_PAIRS: Final = NUMBERS // 2
"""Numbers come back two by two, as those of fingerprints do."""


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Have operators run that are nobody's but ours: no mode sees them, autograd and autocast neither."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for owner, name in (
            (torch._C, "DisableTorchFunction"),
            (torch._C, "_DisableAutocast"),
            (_python_dispatch, "_disable_current_modes"),
        ):
            make: Any = getattr(owner, name, None)
            if make is not None:
                stack.enter_context(make())
        yield


def settled(tensor: Any) -> torch.Tensor:
    """Return what this rank holds of a tensor; a functional collective's result is waited for.

    Whoever uses it next, as an optimizer its gradients, would wait for it all the same, and then need not.
    """
    local = getattr(tensor, "_local_tensor", tensor)
    wait = getattr(local, "trigger_wait", None)
    whole: torch.Tensor = local if wait is None else wait()
    return whole


@dataclass(slots=True)
class _Pending:
    """A row whose numbers are still to come."""

    row: Value
    ticket: int | None
    side: torch.device | None
    index: int


@dataclass(slots=True)
class _Side:
    signs: Signs
    readback: Readback
    numbers: list[torch.Tensor] = field(default_factory=list)
    streams: dict[Hashable, None] = field(default_factory=dict)


@dataclass(slots=True)
class TakenValues:
    """The values of one step, on their way from the device."""

    _pending: list[_Pending]
    _prints: TakenPrints
    _arriving: dict[torch.device, Arriving]

    def ready(self) -> bool:
        """Whether all are there. Never blocks."""
        return self._prints.ready() and all(arriving.ready() for arriving in self._arriving.values())

    def rows(self) -> tuple[Value, ...]:
        """Return the rows; blocks until they are there."""
        prints = self._prints.read()
        numbers = {
            device: np.array(arriving.read(), np.int64).view(np.float64).reshape(-1, NUMBERS).tolist()
            for device, arriving in self._arriving.items()
        }
        return tuple(
            _with(
                each.row,
                None if each.ticket is None else prints[each.ticket].number,
                None if each.side is None else numbers[each.side][each.index],
            )
            for each in self._pending
        )


def _with(row: Value, number: int | None, numbers: Sequence[float] | None) -> Value:
    if numbers is None:
        return replace(row, hash=number)
    square, *sketch, constant = numbers
    finite = math.isfinite(square)
    is_known = finite and all(map(math.isfinite, sketch))
    columns: dict[str, Any] = dict(zip(SKETCH_COLUMNS, sketch, strict=True)) if is_known else {}
    return replace(
        row,
        hash=number,
        constant=bool(constant),
        square=square if finite else None,
        **columns,
    )


class Values:
    """Takes values during a step."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._fingerprints = Fingerprints()
        self._sides: dict[torch.device, _Side] = {}
        self._pending: dict[tuple[str, str, int], _Pending] = {}
        """By kind, name and number: a value taken anew takes the place of the earlier one."""

    def prepare(self, device: torch.device) -> None:
        """Get ready for tensors of an accelerator, so that no step need."""
        self._fingerprints.prepare(device)
        if device.type == "cuda":
            index: int | None = device.index
            side = self._side(torch.device("cuda", torch.cuda.current_device() if index is None else index))
            side.signs.prepare()

    def take(
        self,
        step: int | None,
        kind: str,
        name: str,
        nth: int,
        tensor: torch.Tensor,
        local: torch.Tensor,
        starts: Sequence[int] | None = None,
        *,
        may_leave_out: bool | None = None,
    ) -> None:
        """Take what `local`, this rank's part of `tensor`, holds now. Call it inside `unseen`.

        `step`: None before the first. `starts`: where that part begins, if the tensor does not say.
        `may_leave_out`: see the record.
        """
        row = blank(tensor, local, self._rank, kind, name, step=step, nth=nth, may_leave_out=may_leave_out)
        pending = self._pending[kind, name, nth] = _Pending(row, None, None, 0)
        if not has_values(local):
            return
        side = self._side(local.device)
        if side.readback.capturing():
            # A graph is recorded to be replayed: it must not contain our operators.
            return
        where = starts_of(tensor, local) if starts is None else tuple(starts)
        numbers = numbers_of(local, where, side.signs)
        pending.ticket = self._fingerprints.take(local)
        pending.side, pending.index = local.device, len(side.numbers)
        side.numbers.append(numbers.view(torch.int64).view(_PAIRS, 2))
        side.streams[side.readback.stream()] = None

    def drop(self) -> None:
        """Forget all values taken since the last time."""
        if self._pending:
            self._pending = {}
            for side in self._sides.values():
                side.numbers, side.streams = [], {}
            with unseen():
                self._fingerprints.collect()

    def collect(self) -> TakenValues:
        """Return all values taken since the last time, and forget them. Blocks for no device."""
        arriving = {
            device: side.readback.start(
                [pair for numbers in side.numbers for pair in numbers.unbind()], list(side.streams)
            )
            for device, side in self._sides.items()
            if side.numbers
        }
        for side in self._sides.values():
            side.numbers, side.streams = [], {}
        pending, self._pending = list(self._pending.values()), {}
        return TakenValues(pending, self._fingerprints.collect(), arriving)

    def _side(self, device: torch.device) -> _Side:
        side = self._sides.get(device)
        if side is None:
            readback = CudaReadback(device) if device.type == "cuda" else PlainReadback()
            side = self._sides[device] = _Side(Signs(device), readback)
        return side
