"""Whether a backward adds to the gradients that the one before left, or those were cleared in between.

A gradient that is reduced in two backwards of one optimizer step needs one reduction if the gradients add up.
It needs two if they are cleared, as in sharpness-aware steps, for several tasks, or after a step that was
skipped. When a backward of a surveyed step ends, the parameters that have a gradient are noted. They are
cleared if, as the next one begins, all of them have no gradient or were filled with zeros meanwhile. If some
are left they add up, and the ones in a bucket are unknown here. Gradients that are never there between
backwards, as with FSDP2, which keeps them to itself, show nothing and count as not cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch

from shardtoll.profiler.live.cause.module_names import Names, address_of, local_of
from shardtoll.profiler.live.times.patches import patched
from shardtoll.profiler.live.times.uncleared import Uncleared

Extent: TypeAlias = tuple[int, int]
"""Address, 0 unknown, and elements."""


class Clearing:
    """Counts the backwards that began with cleared gradients."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.begun = 0
        self._left: dict[str, Extent] = {}
        """By name, as torch swaps no parameter that a weak reference is held to. These had a gradient when
        the last backward ended; the value says where it lay."""
        self._extents: frozenset[Extent] = frozenset()
        self._zeroed: set[Extent] = set()
        """Those places at which all became zero."""
        self.uncleared = Uncleared(names)

    def backward_begins(self) -> None:
        """Note the beginning of a backward."""
        self.uncleared.backward_begins(lambda gradient: _extent(gradient) in self._zeroed)
        if self._left:
            now = dict(self._names.parameters())
            left = [(now[name], extent) for name, extent in self._left.items() if name in now]
            if left and all(parameter.grad is None or extent in self._zeroed for parameter, extent in left):
                self.begun += 1
        self.forget()

    def backward_ended(self) -> None:
        """Note the gradients that are there now."""
        self.uncleared.backward_ended()
        parameters = self._names.parameters()
        self._left = {
            name: _extent(parameter.grad) for name, parameter in parameters if parameter.grad is not None
        }
        self._extents = frozenset(extent for extent in self._left.values() if extent[0])
        self._zeroed.clear()

    def zeroed(self, tensors: torch.Tensor | Iterable[torch.Tensor]) -> None:
        """Note that tensors were filled with zeros."""
        if self._extents:
            each = (tensors,) if isinstance(tensors, torch.Tensor) else tensors
            self._zeroed.update(self._extents & {_extent(tensor) for tensor in each})

    def forget(self) -> None:
        """Drop what the last backward left."""
        self._left, self._extents = {}, frozenset()
        self._zeroed.clear()


def _extent(tensor: torch.Tensor) -> Extent:
    """Return where the (local) values lie, and how many: a table's first row has the table's address."""
    local = local_of(tensor)
    return address_of(local), local.numel()


def patch_clearing(
    begins: Callable[[], None], ended: Callable[[], None], of: Callable[[Any], None] | None = None
) -> Callable[[], None]:
    """Have `begins` called before each backward, `of` with its roots, `ended` after; returns the undoing."""

    def telling(original: Any) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            begins()
            if of is not None:
                of(args[0] if args else kwargs.get("tensors", ()))
            try:
                return original(*args, **kwargs)
            finally:
                ended()

        return backward

    return patched(lambda patches: patches.around(torch.autograd, "backward", telling))
