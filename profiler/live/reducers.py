"""Which of DDP's reducers take part in a step: what they issue from C++ shows nothing else of whose it is.

A reducer is made ready for each backward that reduces by a method called from Python; while a session is
open that is noted. Two steps with other reducers are never taken for the same, though their counts agree. A
reducer is known by its address, so a new model wrapped in DDP begins a new numbering: it may lie where an old
one lay.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import count
from typing import Any

import torch.distributed as dist
from torch import nn

Note = Callable[[int], None]


def patch_reducers(note: Note) -> Callable[[], None]:
    """Have `note` called with the number of each reducer made ready for a backward; returns the undoing."""
    numbers = count()
    known: dict[int, int] = {}
    undo: list[tuple[Any, str, Any, Any]] = []

    def restore() -> None:
        for owner, name, wrapper, original in undo:
            if getattr(owner, name, None) is wrapper:
                setattr(owner, name, original)

    def replace(owner: Any, name: str, told: Callable[[Any], None]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            told(self)
            return original(self, *args, **kwargs)

        undo.append((owner, name, wrapper, original))
        setattr(owner, name, wrapper)

    try:
        if dist.is_available():
            replace(
                getattr(dist, "Reducer", None),
                "prepare_for_backward",
                lambda reducer: note(known.setdefault(id(reducer), next(numbers))),
            )
            replace(nn.parallel.DistributedDataParallel, "__init__", lambda _: known.clear())
        return restore
    except BaseException:
        # An interrupt of the user's, half-way: nobody else would know what to undo.
        restore()
        raise
