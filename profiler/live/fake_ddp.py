"""DDP over a fake process group: its reducer takes results from futures, and a fake group's have none.

torch (2.6 to 2.13) stops the backward there with an internal assertion. A comm hook that issues the same
all_reduce of each bucket, and returns the bucket as it is, takes the reducer's place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler.live.patches import Patches, patched


def patch_ddp() -> Callable[[], None]:
    """Have each DDP model that has no hook of its own by its first forward reduce so; returns the undoing."""

    def make(original: Any) -> Callable[..., Any]:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not getattr(self, "_comm_hooks", True):
                # torch checks a hook's annotations, which are text here: a lambda has none.
                self.register_comm_hook(self.process_group, lambda group, bucket: _reduce(group, bucket))
            return original(self, *args, **kwargs)

        return wrapper

    def install(patches: Patches) -> None:
        patches.around(DistributedDataParallel, "forward", make)

    return patched(install)


def _reduce(group: Any, bucket: Any) -> Any:
    dist.all_reduce(bucket.buffer(), group=group)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
