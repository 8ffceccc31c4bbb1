"""When the end of a backward waits in C++ for collectives that C++ issued.

DDP's reducer issues its buckets inside backward and waits for them in a callback at the end of it, without
Python taking part: with no dispatch mode active, nothing would tell when. A hook on the root of each backward
queues a callback of ours before the reducer queues its own, and another one after: they enclose the waiting.
The hook returns nothing, changes no gradient, and is gone when the backward is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardtoll.profiler.live.patches import patched


def _nothing(_: Any) -> None:
    pass


def patch_backward(
    wanted: Callable[[], bool],
    note: Callable[[], None],
    ran: Callable[[], None],
    begins: Callable[[Any], None] = _nothing,
) -> Callable[[], None]:
    """Have `note` called as each backward begins, on its thread, where `wanted`; returns what undoes that.

    `ran` is called after each: what follows a backward is told from a forward by it. `begins` is called
    before each with what it begins at, where that can be gone through again.
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
    """Return a tensor at which the backward begins, None where there is none to hook on, and what to pass on.

    What can be gone through only once, as a generator, is passed on as a tuple of what it gave.
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
