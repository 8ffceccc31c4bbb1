"""What every sample does with its process: join the ranks of torchrun, and leave again."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist


@contextlib.contextmanager
def process_group(device: str, backend: str | None = None) -> Iterator[torch.device]:
    """Join the ranks that torchrun started (or be one alone); yields this rank's device.

    `device` is `cpu`, `cuda` or `auto`; the backend follows from it unless one is named.
    """
    for name, alone in (
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "0"),
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
    ):
        os.environ.setdefault(name, alone)
    cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    found = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(found)
    dist.init_process_group(backend or ("nccl" if cuda else "gloo"))
    try:
        yield found
    finally:
        dist.destroy_process_group()


def leave() -> None:
    """End the process as soon as its output is written.

    Gloo's threads sometimes abort a Python interpreter that shuts down after its group is gone; what is
    to be said has been said by then.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
