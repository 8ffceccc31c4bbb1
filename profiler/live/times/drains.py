"""When the end of a backward waits in C++ for collectives that C++ issued.

DDP's reducer issues its buckets inside backward. It waits for them in a callback at the end of it, and Python
takes no part. With no dispatch mode active, nothing would show when. A hook on the root of each backward
queues two callbacks of ours: one before the reducer queues its own, and one after. They enclose the waiting.
The hook returns nothing, changes no gradient, and is gone when the backward is.

Nothing else shows which reducer issued a collective. A method called from Python makes each ready for a
backward; this is noted. Two steps with other reducers are thus never taken for the same, though their counts
agree. A reducer is known by its address. A new model wrapped in DDP begins a new numbering, as it may lie
where an old one lay.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.profiler.live.times.patches import Patches, patched


def _nothing(_: Any) -> None:
    pass


def patch_backward(
    wanted: Callable[[], bool],
    note: Callable[[], None],
    ran: Callable[[], None],
    begins: Callable[[Any], None] = _nothing,
) -> Callable[[], None]:
    """Have `note` called as each backward begins, on its thread, where `wanted`; returns what undoes that.

    `ran` is called after each: work after a backward is thus distinguished from a forward. `begins` is called
    before each with what it begins at, if that can be gone through again.
    """

    def with_drains(original: Any) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            handle: Any = None
            roots = args[0] if args else kwargs.get("tensors")
            if isinstance(roots, (torch.Tensor, list, tuple)):
                begins(roots)
            try:
                if wanted():
                    root, args, kwargs = _root(args, kwargs)
                    if root is not None:
                        handle = root.register_hook(lambda _gradient: note())  # type: ignore[no-untyped-call]
                return original(*args, **kwargs)
            finally:
                if handle is not None:
                    handle.remove()
                ran()

        return backward

    return patched(lambda patches: patches.around(torch.autograd, "backward", with_drains))


def _root(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.Tensor | None, tuple[Any, ...], dict[str, Any]]:
    """Return a tensor at which the backward begins, None if there is none to hook on, and what to pass on.

    An input that can be gone through only once, as a generator, is passed on as a tuple of its items.
    """
    tensors = args[0] if args else kwargs.get("tensors", ())
    if isinstance(tensors, torch.Tensor):
        tensors = (tensors,)
    elif not isinstance(tensors, (list, tuple)):
        tensors = tuple(tensors)
        if args:
            args = (tensors, *args[1:])
        else:
            kwargs = {**kwargs, "tensors": tensors}
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
            return tensor, args, kwargs
    return None, args, kwargs


Note = Callable[[int], None]


def patch_reducers(note: Note) -> Callable[[], None]:
    """Have `note` called with the number of each reducer made ready for a backward; returns the undoing."""
    numbers = count()
    number_of: dict[int, int] = {}

    def telling(tell: Callable[[Any], object]) -> Callable[[Any], Callable[..., Any]]:
        def make(original: Any) -> Callable[..., Any]:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
                tell(self)
                return original(self, *args, **kwargs)

            return wrapper

        return make

    def install(patches: Patches) -> None:
        if dist.is_available():
            ready = telling(lambda reducer: note(number_of.setdefault(id(reducer), next(numbers))))
            patches.around(getattr(dist, "Reducer", None), "prepare_for_backward", ready)
            patches.around(
                nn.parallel.DistributedDataParallel, "__init__", telling(lambda _: number_of.clear())
            )

    return patched(install)


def patch_ddp_outside(make: Callable[[Callable[..., Any], Any, Any], Any]) -> Callable[[], None]:
    """Have `make` call DDP's constructor and its sending of buffers, which C++ does unseen; undone by what
    it returns."""

    def through(original: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return make(original, args, kwargs)

        return call

    def install(patches: Patches) -> None:
        for name in ("__init__", "_sync_buffers"):
            patches.around(nn.parallel.DistributedDataParallel, name, through)

    return patched(install)
