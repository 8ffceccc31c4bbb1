"""Whether a backward adds to the gradients that the one before left, or those were cleared in between.

What is reduced in two backwards of one optimizer step is needed once where the gradients add up, and twice
where they are cleared, as in sharpness-aware steps, for several tasks, or after a step that was skipped. When
a backward of a surveyed step ends, the parameters that have a gradient are noted; as the next one begins, one
of them is without, or was filled with zeros meanwhile. Gradients that are never there between backwards, as
where FSDP2 keeps them to itself, tell nothing and count as not cleared.
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
        self._left: list[weakref.ref[nn.Parameter]] = []
        """The parameters that had a gradient when the last backward ended."""
        self._addresses: frozenset[int] = frozenset()
        """Where those gradients lie."""
        self._zeroed = False

    def backward_begins(self) -> None:
        """Note the beginning of a backward."""
        left = (reference() for reference in self._left)
        if self._zeroed or any(parameter is not None and parameter.grad is None for parameter in left):
            self.begun += 1
        self._left, self._addresses, self._zeroed = [], frozenset(), False

    def backward_ended(self) -> None:
        """Note the gradients that are there now."""
        held = [(one, one.grad) for _, one in self._names.parameters() if one.grad is not None]
        self._left = [weakref.ref(parameter) for parameter, _ in held]
        self._addresses = frozenset(address_of(local_of(gradient)) for _, gradient in held) - {0}
        self._zeroed = False

    def zeroed(self, tensors: torch.Tensor | Iterable[torch.Tensor]) -> None:
        """Note that tensors were filled with zeros."""
        if self._addresses and not self._zeroed:
            each = (tensors,) if isinstance(tensors, torch.Tensor) else tensors
            self._zeroed = any(address_of(tensor) in self._addresses for tensor in each)


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
