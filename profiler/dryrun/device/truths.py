"""Conditions whose answer is known without numbers: everything that a dry run computes is finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

_NAME: Final = "_shardtoll_truth"
"""Attribute of a tensor of bools all of which are the same and known."""
_FINITE: Final = ("isfinite", "isreal")
_NOT_FINITE: Final = ("isnan", "isinf", "isposinf", "isneginf")
_SAME: Final = ("all", "any", "clone", "detach", "view", "reshape", "squeeze", "unsqueeze", "flatten")
_NEGATED: Final = ("logical_not", "bitwise_not", "__invert__")
_EITHER: Final = ("logical_or", "bitwise_or", "__or__")
_BOTH: Final = ("logical_and", "bitwise_and", "__and__")


class Truths:
    """Notes at tensors of bools whether they are true, and answers from that."""

    def of(self, tensor: Any) -> bool | None:
        """Return whether all elements are true (True) or none is (False); None if unknown."""
        if isinstance(tensor, bool):
            return tensor
        truth: bool | None = getattr(tensor, _NAME, None)
        return truth

    def note(self, tensor: Any, truth: bool | None) -> None:
        """Note it at a tensor without numbers; a real one has its own."""
        fake = isinstance(tensor, FakeTensor) or hasattr(tensor, "_local_tensor")
        if truth is not None and fake and tensor.dtype == torch.bool:
            setattr(tensor, _NAME, truth)

    def handlers(self) -> dict[Any, Callable[..., Any]]:
        """Return replacements of functions whose bools are known, by function."""

        def always(truth: bool) -> Callable[..., bool | None]:
            return lambda *_: truth

        def negated(first: Any = None, *_: Any) -> bool | None:
            truth = self.of(first)
            return None if truth is None else not truth

        def decided_by(deciding: bool) -> Callable[..., bool | None]:
            def joined(first: Any = None, second: Any = None, *_: Any) -> bool | None:
                truths = self.of(first), self.of(second)
                if deciding in truths:
                    return deciding
                return None if None in truths else not deciding

            return joined

        rules: tuple[tuple[tuple[str, ...], Callable[..., bool | None]], ...] = (
            (_FINITE, always(True)),
            (_NOT_FINITE, always(False)),
            (_SAME, lambda first=None, *_: self.of(first)),
            (_NEGATED, negated),
            (_EITHER, decided_by(True)),
            (_BOTH, decided_by(False)),
        )
        return {
            getattr(room, name): self._noting(rule)
            for names, rule in rules
            for name in names
            for room in (torch, torch.Tensor)
            if hasattr(room, name)
        }

    def _noting(self, rule: Callable[..., bool | None]) -> Callable[..., Any]:
        def run(func: Any, *args: Any, **kwargs: Any) -> Any:
            made = func(*args, **kwargs)
            given = args or [kwargs[name] for name in ("input", "other") if name in kwargs]
            self.note(made, rule(*given))
            return made

        return run
