"""The copies by which `nn.DataParallel` deals a batch to the GPUs of one process: here there is one."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn.parallel import comm

from shardtoll.profiler.dryrun.shims.playing import Playing
from shardtoll.profiler.dryrun.shims.replaced import Replaced


def replace_scatter(shim: Playing, replaced: Replaced) -> None:
    """Have scatter and gather give the one GPU all of it; several GPUs are refused."""
    gpu = shim.tensors.gpu

    def scatter(tensor: torch.Tensor, devices: Any = None, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
        if devices is None or len(list(devices)) != 1:
            raise NotImplementedError("a dry run plays one GPU a process: use DistributedDataParallel")
        return (tensor.to(gpu),)

    def gather(tensors: Any, _: int = 0, destination: Any = None, **__: Any) -> torch.Tensor:
        (tensor,) = tensors
        to_host = destination in (-1, "cpu", torch.device("cpu"))
        return cast(torch.Tensor, tensor.cpu() if to_host else tensor)

    replaced.put(comm, "scatter", scatter)
    replaced.put(comm, "gather", gather)
