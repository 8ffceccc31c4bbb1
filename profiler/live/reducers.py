"""Which of DDP's reducers take part in a step: what they issue from C++ shows nothing else of whose it is.

A reducer is made ready for each backward that reduces by a method called from Python; while a session is
open that is noted. Two steps with other reducers are never taken for the same, though their counts agree. A
reducer is known by its address, so a new model wrapped in DDP begins a new numbering: it may lie where an old
one lay.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch.distributed as dist
from torch import nn

from shardtoll.profiler.live.patches import Patches, patched

Note = Callable[[int], None]


def patch_reducers(note: Note) -> Callable[[], None]:
    """Have `note` called with the number of each reducer made ready for a backward; returns the undoing."""
    numbers = count()
    known: dict[int, int] = {}

    def telling(tell: Callable[[Any], object]) -> Callable[[Any], Callable[..., Any]]:
        def make(original: Any) -> Callable[..., Any]:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
                tell(self)
                return original(self, *args, **kwargs)

            return wrapper

        return make

    def install(patches: Patches) -> None:
        if dist.is_available():
            ready = telling(lambda reducer: note(known.setdefault(id(reducer), next(numbers))))
            patches.around(getattr(dist, "Reducer", None), "prepare_for_backward", ready)
            patches.around(nn.parallel.DistributedDataParallel, "__init__", telling(lambda _: known.clear()))

    return patched(install)
