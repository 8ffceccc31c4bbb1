"""What a dry run answers when the program asks for a number that nobody computed, and who asked."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch

BALANCED: Final = "balanced"
"""The policy that shares out sizes evenly, as among experts, and else answers 0."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How values are answered: `number` for each, and with `balanced` counts shared out evenly."""

    number: float = 0.0
    balanced: bool = True


def policy_of(text: str | None) -> Policy:
    """Return the policy of `--item`: a number, or `balanced`; ValueError for anything else."""
    return Policy() if text is None or text == BALANCED else Policy(float(text), balanced=False)


class Values:
    """Answers for values of fake tensors, and counts where it did."""

    def __init__(self, policy: Policy, user_line: Callable[[FrameType | None], str | None]) -> None:
        self._policy = policy
        self._user_line = user_line
        self.asked: Counter[tuple[str, str | None]] = Counter()
        """(what was asked, line of the program) -> how often."""
        self.synchronized: Callable[[], None] | None = None
        """Called where the host waits for the device, as for a value."""
        self.recorded: Callable[[torch.Tensor, Any], None] | None = None
        """Called with a tensor and a stream that uses it."""
        self._totals: dict[int, tuple[Any, int]] = {}
        """Storage of counts, as of tokens of each expert -> what they add up to."""

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        """Note that a stream uses the tensor."""
        if self.recorded is not None:
            self.recorded(tensor, stream)

    def note_total(self, counts: torch.Tensor, total: int) -> None:
        """Note what a tensor of counts adds up to."""
        storage = counts.untyped_storage()
        self._totals[storage._cdata] = storage, total

    def _note(self, what: str) -> None:
        line = self._user_line(sys._getframe(2))
        self.asked[what, line] += 1
        if self.synchronized is not None:
            self.synchronized()

    def _number(self, tensor: torch.Tensor) -> float | int | bool | complex:
        if tensor.dtype == torch.bool:
            return False
        number = self._policy.number
        return number if tensor.is_floating_point() else int(number)

    def _answer(self, tensor: torch.Tensor) -> Any:
        """Return the values as nested lists."""
        number = self._number(tensor)
        if self._policy.balanced and not tensor.is_floating_point() and tensor.numel():
            total = self.total_of(tensor)
            if total is not None:
                share, rest = divmod(total, tensor.numel())
                flat = [share + (place < rest) for place in range(tensor.numel())]
                return torch.tensor(flat).reshape(tensor.shape).tolist()
        return torch.full(tuple(tensor.shape), number, dtype=tensor.dtype).tolist()

    def total_of(self, tensor: torch.Tensor) -> int | None:
        """Return what a tensor of counts adds up to; None unknown."""
        held = self._totals.get(_local(tensor).untyped_storage()._cdata)
        return None if held is None else held[1]

    def close(self) -> None:
        """Hold no tensor any longer."""
        self._totals.clear()

    def handlers(self, is_host: Callable[[Any], bool]) -> dict[Any, Callable[..., Any]]:
        """Return what runs instead of the functions that read values, by function."""

        def constant(tensor: torch.Tensor) -> Any:
            return getattr(_local(tensor), "constant", None)

        def reading(what: str, convert: Callable[[Any], Any]) -> Callable[..., Any]:
            def read(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if type(tensor) in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
                    return func(tensor, *args, **kwargs)
                fixed = constant(tensor)
                if fixed is not None:
                    return func(fixed, *args, **kwargs)
                self._note(what)
                return convert(tensor)

            return read

        def item(tensor: torch.Tensor) -> Any:
            answered = self._answer(tensor)
            while isinstance(answered, list):
                answered = answered[0]
            return answered

        one = torch.Tensor
        return {
            one.item: reading("item()", item),
            one.tolist: reading("tolist()", self._answer),
            one.__bool__: reading("bool()", lambda tensor: bool(item(tensor))),
            one.__float__: reading("float()", lambda tensor: float(item(tensor))),
            one.__int__: reading("int()", lambda tensor: int(item(tensor))),
            one.__index__: reading("index()", lambda tensor: int(item(tensor))),
            one.numpy: reading("numpy()", self._numpy),
            one.__array__: reading("numpy()", self._numpy),
            one.__format__: lambda func, tensor, spec: (
                func(tensor, spec)
                if type(tensor) is torch.Tensor
                else format(item(tensor), spec)
                if tensor.dim() == 0
                else repr(tensor)
            ),
            torch.equal: lambda func, first, second: (
                func(first, second) if is_host(first) and is_host(second) else first.shape == second.shape
            ),
            torch.allclose: lambda func, first, second, *args, **kwargs: (
                func(first, second, *args, **kwargs) if is_host(first) and is_host(second) else True
            ),
        }

    def _numpy(self, tensor: torch.Tensor) -> Any:
        import numpy as np

        return np.array(self._answer(tensor))


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local
