"""Whether a backward adds to the gradients that the one before left, or those were cleared in between.

What is reduced in two backwards of one optimizer step is needed once where the gradients add up, and twice
where they are cleared, as in sharpness-aware steps, for several tasks, or after a step that was skipped. When
a backward of a surveyed step ends, the parameters that have a gradient are noted; as the next one begins, all
of them are without, or were filled with zeros meanwhile. Where some are left they add up, and which ones a
bucket holds is not known here. Gradients that are never there between backwards, as where FSDP2 keeps them to
itself, tell nothing and count as not cleared.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from shardtoll.profiler.live.names import Names, address_of, local_of
from shardtoll.profiler.live.patches import patched


class Clearing:
    """Counts the backwards that began with cleared gradients."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.begun = 0
        self._left: list[tuple[weakref.ref[nn.Parameter], int]] = []
        """The parameters that had a gradient when the last backward ended, and where it lay; 0 unknown."""
        self._addresses: frozenset[int] = frozenset()
        self._zeroed: set[int] = set()
        """Those addresses at which all became zero."""

    def backward_begins(self) -> None:
        """Note the beginning of a backward."""
        left = [(parameter, at) for reference, at in self._left if (parameter := reference()) is not None]
        if left and all(parameter.grad is None or at in self._zeroed for parameter, at in left):
            self.begun += 1
        self._left, self._addresses = [], frozenset()
        self._zeroed.clear()

    def backward_ended(self) -> None:
        """Note the gradients that are there now."""
        held = [(one, one.grad) for _, one in self._names.parameters() if one.grad is not None]
        self._left = [(weakref.ref(one), address_of(local_of(gradient))) for one, gradient in held]
        self._addresses = frozenset(at for _, at in self._left) - {0}
        self._zeroed.clear()

    def zeroed(self, tensors: torch.Tensor | Iterable[torch.Tensor]) -> None:
        """Note that tensors were filled with zeros."""
        if self._addresses:
            each = (tensors,) if isinstance(tensors, torch.Tensor) else tensors
            self._zeroed.update(self._addresses & {address_of(tensor) for tensor in each})


def patch_clearing(begins: Callable[[], None], ended: Callable[[], None]) -> Callable[[], None]:
    """Have `begins` called before each backward and `ended` after it; returns the undoing."""

    def telling(original: Any) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            begins()
            try:
                return original(*args, **kwargs)
            finally:
                ended()

        return backward

    return patched(lambda patches: patches.around(torch.autograd, "backward", telling))
