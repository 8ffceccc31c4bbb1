"""A dry run's answer if the program asks for a number that nobody computed, and who asked."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch

from shardtoll.profiler.dryrun.device.errors import Endless
from shardtoll.profiler.dryrun.device.truths import Truths

BALANCED: Final = "balanced"
"""The policy that shares out sizes evenly, as among experts, and else answers 0."""

_MOST_ANSWERS: Final = 20_000
"""Answers at one line without a module called or an optimizer step between. As many calls of modules may have
answers without a step. A loop that makes more waits for a number, or is long."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How values are answered: `number` for each, and with `balanced` counts shared out evenly."""

    number: float = 0.0
    balanced: bool = True


def policy_of(text: str | None) -> Policy:
    """Return the policy of `--item`: a number, or `balanced`; ValueError for anything else."""
    return Policy() if text is None or text == BALANCED else Policy(float(text), balanced=False)


class Values:
    """Answers for values of fake tensors, and counts the places of its answers."""

    def __init__(self, policy: Policy, user_line: Callable[[FrameType | None], str | None]) -> None:
        self._policy = policy
        self._user_line = user_line
        self.asked: Counter[tuple[str, str | None]] = Counter()
        """(what was asked, line of the program) -> how often."""
        self._since_call: Counter[str | None] = Counter()
        """Line -> answers since an outermost module was called, or an optimizer stepped."""
        self._calls = 0
        """Calls of outermost modules since the step that had answers after them."""
        self._truths = Truths()
        self.synchronized: Callable[[], None] | None = None
        """Called where the host waits for the device, as for a value."""
        self.recorded: Callable[[torch.Tensor, Any], None] | None = None
        """Called with a tensor and a stream that uses it."""
        self._totals: dict[int, tuple[Any, int, int]] = {}
        """Storage of counts, as of tokens of each expert -> their sum, and how many they are."""

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        """Note that a stream uses the tensor."""
        if self.recorded is not None:
            self.recorded(tensor, stream)

    def note_total(self, counts: torch.Tensor, total: int) -> None:
        """Note the sum of a tensor of counts."""
        storage = counts.untyped_storage()
        self._totals[storage._cdata] = storage, total, counts.numel()

    def _note(self, what: str) -> None:
        line = self._user_line(sys._getframe(2))
        self.asked[what, line] += 1
        self._since_call[line] += 1
        if self._since_call[line] > _MOST_ANSWERS or self._calls >= _MOST_ANSWERS:
            raise Endless(what, line, _MOST_ANSWERS, calls=self._calls >= _MOST_ANSWERS)
        if self.synchronized is not None:
            self.synchronized()

    def stepped(self) -> None:
        """Note that an optimizer has stepped."""
        self._since_call.clear()
        self._calls = 0

    def forwarded(self) -> None:
        """Note that a module is called that no other one calls: a loop around it makes progress."""
        if self._since_call:
            self._since_call.clear()
            self._calls += 1

    def carry(self, source: torch.Tensor, made: torch.Tensor) -> None:
        """Note that `made` is a copy of `source`, and as true."""
        self._truths.note(made, self._truths.of(source))

    def _number(self, tensor: torch.Tensor) -> float | int | bool | complex:
        number = self._policy.number
        if tensor.dtype == torch.bool:
            truth = self._truths.of(tensor)
            return bool(number) if truth is None else truth
        return number if tensor.is_floating_point() else int(number)

    def _answer(self, tensor: torch.Tensor) -> Any:
        """Return the values as nested lists."""
        number = self._number(tensor)
        if self._policy.balanced and not tensor.is_floating_point() and tensor.numel():
            flat = self._counts_of(tensor)
            if flat is not None:
                return torch.tensor(flat).reshape(tensor.shape).tolist()
        return torch.full(tuple(tensor.shape), number, dtype=tensor.dtype).tolist()

    def total_of(self, tensor: torch.Tensor) -> int | None:
        """Return the sum of a tensor of counts; None if unknown."""
        counts = self._counts_of(tensor)
        return None if counts is None else sum(counts)

    def _counts_of(self, tensor: torch.Tensor) -> list[int] | None:
        """Return the counts that a tensor holds, shared out evenly; a view holds those of its places."""
        local = _local(tensor)
        held = self._totals.get(local.untyped_storage()._cdata)
        if held is None:
            return None
        share, rest = divmod(held[1], max(held[2], 1))
        first = local.storage_offset()
        return [share + (place < rest) for place in range(first, first + local.numel())]

    def close(self) -> None:
        """Hold no tensor any longer."""
        self._totals.clear()

    def handlers(self, is_host: Callable[[Any], bool]) -> dict[Any, Callable[..., Any]]:
        """Return replacements of the functions that read values, by function."""

        def constant(tensor: torch.Tensor) -> Any:
            return getattr(_local(tensor), "constant", None)

        def reading(what: str, convert: Callable[[Any], Any]) -> Callable[..., Any]:
            def read(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if type(tensor) in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
                    return func(tensor, *args, **kwargs)
                fixed = constant(tensor)
                if fixed is not None:
                    if self.synchronized is not None and not is_host(tensor):
                        self.synchronized()
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
            **self._sizes(is_host),
            **self._truths.handlers(),
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

    def _sizes(self, is_host: Callable[[Any], bool]) -> dict[Any, Callable[..., Any]]:
        """Return replacements of the functions whose result has as many elements as the values say."""

        def on_device(run: Callable[..., Any]) -> Callable[..., Any]:
            def chosen(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if is_host(tensor) or tensor.is_meta:
                    return func(tensor, *args, **kwargs)
                self._note(getattr(func, "__name__", "size"))
                return run(tensor, *args, **kwargs)

            return chosen

        def bincount(tensor: torch.Tensor, _: Any = None, minlength: int = 0, **__: Any) -> torch.Tensor:
            made = tensor.new_zeros(max(int(minlength), 1), dtype=torch.int64)
            self.note_total(made, tensor.numel())
            return made

        def nonzero(tensor: torch.Tensor, *, as_tuple: bool = False) -> Any:
            # Every element counts as one that is not zero: the most that there can be.
            places = tensor.new_zeros(tensor.numel(), max(tensor.dim(), 1), dtype=torch.int64)
            return places.unbind(1) if as_tuple else places

        def masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return tensor.expand_as(mask).reshape(-1) if mask.dim() >= tensor.dim() else tensor.reshape(-1)

        def unique(
            tensor: torch.Tensor,
            *_: Any,
            return_inverse: bool = False,
            return_counts: bool = False,
            **__: Any,
        ) -> Any:
            flat = tensor.reshape(-1).clone()
            made = [flat]
            made += [torch.zeros_like(tensor, dtype=torch.int64)] if return_inverse else []
            made += [torch.ones_like(flat, dtype=torch.int64)] if return_counts else []
            return tuple(made) if len(made) > 1 else flat

        def getitem(func: Any, tensor: torch.Tensor, index: Any) -> Any:
            return func(tensor, self._plain_index(index, is_host))

        return {
            torch.bincount: on_device(bincount),
            torch.Tensor.bincount: on_device(bincount),
            torch.nonzero: on_device(nonzero),
            torch.Tensor.nonzero: on_device(nonzero),
            torch.masked_select: on_device(masked_select),
            torch.Tensor.masked_select: on_device(masked_select),
            torch.unique: on_device(unique),
            torch.Tensor.unique: on_device(unique),
            torch.Tensor.__getitem__: getitem,
        }

    def _plain_index(self, index: Any, is_host: Callable[[Any], bool]) -> Any:
        """Return an index without values that nobody knows: masks keep everything."""

        def plain(part: Any) -> Any:
            if isinstance(part, slice):
                ends = (part.start, part.stop, part.step)
                if any(isinstance(end, torch.Tensor) and not is_host(end) for end in ends):
                    return slice(*(end.item() if isinstance(end, torch.Tensor) else end for end in ends))
            if isinstance(part, torch.Tensor) and part.dtype == torch.bool and not is_host(part):
                self._note("a mask as index")
                if part.dim() == 1:
                    return slice(None)
                return torch.nonzero(part, as_tuple=True)
            return part

        if isinstance(index, tuple):
            flat: list[Any] = []
            for part in index:
                made = plain(part)
                flat += made if isinstance(made, tuple) else [made]
            return tuple(flat)
        return plain(index)

    def _numpy(self, tensor: torch.Tensor) -> Any:
        import numpy as np

        return np.array(self._answer(tensor))


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local
