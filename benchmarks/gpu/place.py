"""Where a part runs: the first CUDA card, or in rehearsal the CPU with everything tiny."""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from harness import machine

from gpu.sheet import Sheet

_cuda: Any = torch.cuda  # torch leaves parts of it untyped


@dataclass(frozen=True, slots=True)
class Place:
    """A device and what goes with it."""

    device: str
    """`cuda` or `cpu`."""

    @property
    def rehearses(self) -> bool:
        """Return whether this is the rehearsal on the CPU."""
        return self.device == "cpu"

    @property
    def backend(self) -> str:
        """Return the backend of a group of one rank: NCCL, in rehearsal gloo."""
        return "gloo" if self.rehearses else "nccl"

    @property
    def dtype(self) -> torch.dtype:
        """Return what models train in: bf16; in rehearsal fp32, which every CPU has fast."""
        return torch.float32 if self.rehearses else torch.bfloat16

    @property
    def activities(self) -> list[Any]:
        """Return what torch's profiler is to record."""
        kinds = [torch.profiler.ProfilerActivity.CPU]
        return kinds if self.rehearses else [*kinds, torch.profiler.ProfilerActivity.CUDA]

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if not self.rehearses:
            _cuda.synchronize()

    def block_s(self, work: Callable[[], Any], times: int) -> float:
        """Return the seconds of one call out of `times`, from an idle device to an idle device."""
        self.synchronize()
        begun = time.perf_counter()
        for _ in range(times):
            work()
        self.synchronize()
        return (time.perf_counter() - begun) / times


@contextmanager
def one_rank(place: Place) -> Any:
    """Join a process group of one rank for as long as the block runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.setdefault("NCCL_DEBUG", "ERROR")
    if not place.rehearses:
        _cuda.set_device(0)
    dist.init_process_group(place.backend, init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def part(name: str, measure: Callable[[Sheet, Place, Path], None], about: str) -> None:
    """Run one part as a program: `OUT DEVICE`; its result goes to OUT/NAME.json."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the result file")
    parser.add_argument("device", choices=("cuda", "cpu"), help="cpu rehearses with tiny sizes")
    arguments = parser.parse_args()
    sheet = Sheet(name, arguments.out / f"{name}.json", machine())
    sheet.save()
    measure(sheet, Place(arguments.device), arguments.out)
    sheet.save(finished=True)
