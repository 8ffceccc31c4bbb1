"""Numbers of the device that are known: the program made them of its own numbers, as a count of samples.

Other ranks are taken to have the same ones, which the forecast says. So a collective's result is known too.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from shardtoll.profiler.dryrun.device.work import tensors_in
from shardtoll.profiler.live.cause.call import Call

MOST: Final = 64
"""Elements of a tensor of the host whose numbers stay known on the device; larger ones are data."""


def note(tensor: torch.Tensor, numbers: torch.Tensor | None) -> None:
    """Note the numbers of a fake tensor, None if unknown. Torch forgets them when it writes others to it."""
    if type(tensor) is not FakeTensor:
        return
    before, converter = tensor.constant, tensor.fake_mode.fake_tensor_converter
    if before is not None and numbers is not None and _takes(before, numbers):
        # Views, and what this is a view of, hold numbers of the same storage.
        before.copy_(numbers)
        return
    if before is not None:
        converter.invalidate_constant_aliases(before)
    if numbers is not None:
        tensor.constant = numbers
        converter.add_constant_storage_mapping(tensor)


def _takes(before: torch.Tensor, numbers: torch.Tensor) -> bool:
    """Whether numbers can be written over those before: an expanded tensor has one place for many."""
    same = before.shape == numbers.shape and before.dtype == numbers.dtype
    return same and torch._debug_has_internal_overlap(before) == 0


class Exchanged:
    """Numbers that a collective passes on or reduces: read before it, noted after it."""

    def __init__(self, call: Call, arguments: dict[str, Any]) -> None:
        self._op, self._reduction = call.op, call.reduce_op
        self._arguments = arguments
        self._ranks = int(call.group.size()) if call.group is not None else 1
        self._is_root = self._ranks == 1 or call.root == call.group.rank()
        self._given = tensors_in([arguments.get(name) for name in _INPUTS])
        known = [tensor.constant if type(tensor) is FakeTensor else None for tensor in self._given]
        self._known = [None if numbers is None else numbers.clone() for numbers in known]

    def note(self) -> str | None:
        """Note the numbers of what the collective wrote to; returns what they assume, None if nothing."""
        outputs = tensors_in([self._arguments.get(name) for name in _OUTPUTS])
        if not outputs and self._op not in _IN_PLACE:
            return None
        assumed = False
        for place, tensor in enumerate(outputs or self._given):
            # One input makes the outputs of all ranks; several coalesced ones have theirs in turn.
            numbers = self._known[place % len(self._known)] if self._known else None
            made = None if numbers is None else self._made(numbers, tensor)
            note(tensor, made)
            assumed = assumed or (made is not None and self._ranks > 1 and self._op != "broadcast")
        return f"numbers of an {self._op} were taken as equal on all ranks" if assumed else None

    def _made(self, numbers: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the numbers that `tensor` has if each rank gave `numbers`; None if nobody knows."""
        if self._op == "all_gather":
            times, rest = divmod(tensor.numel(), max(numbers.numel(), 1))
            whole = not rest and times in (1, self._ranks)
            return numbers.reshape(-1).repeat(times).reshape(tensor.shape) if whole else None
        if self._op == "broadcast":
            # Elsewhere the root's numbers arrive, and it does not run.
            return numbers.clone() if self._is_root else None
        if self._op != "all_reduce":
            return None
        if self._reduction in _SAME:
            return numbers.clone()
        if self._reduction != "SUM" or numbers.dtype == torch.bool:
            return None
        return (numbers * self._ranks).to(numbers.dtype)


_INPUTS: Final = ("tensors", "input", "inputs", "input_tensor", "input_tensors", "input_list")
_OUTPUTS: Final = ("output_tensors", "output_tensor", "output_lists", "output", "outputs", "out")
_IN_PLACE: Final = ("all_reduce", "broadcast", "reduce", "recv")
"""Collectives that write to what they are given."""
_SAME: Final = ("AVG", "MIN", "MAX", "BAND", "BOR")
"""Reductions that make of equal numbers the same one."""
