"""Opens and closes many sessions in one process and says what grows with them.

One gloo rank trains a small model under DDP, two steps a session, at each level in turn. After a tenth of the
sessions, and at the end: resident memory, Python objects, threads, open files, temporary folders, patched
functions of torch and keys of the job's store. What grew between the two is given whole and by session;
resident memory also for each tenth of the sessions in between and for the last half, which tells a plateau
from a leak. Memory that the allocator keeps for later is given back before it is measured.

torch's own flight recorder keeps the last 2,000 collectives with their stacks, whether audited or not:
resident memory grows until it is full, here after about 1,000 sessions. `TORCH_FR_BUFFER_SIZE=0` switches it
off.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from harness import Result, main
from torch import nn
from torch._C._distributed_c10d import HashStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shardtoll.profiler import audit
from shardtoll.profiler.live.session.schedule import LEVELS


def _sizes() -> dict[str, float]:
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident_bytes": float(pages * os.sysconf("SC_PAGE_SIZE")),
        "objects": float(len(gc.get_objects())),
        "threads": float(len(os.listdir("/proc/self/task"))),
        "files": float(len(os.listdir("/proc/self/fd"))),
        "folders": float(len(list(Path(tempfile.gettempdir()).glob("shardtoll-*")))),
        "patched": float(_patched()),
        "keys": float(dist.distributed_c10d._get_default_store().num_keys()),
    }


def _patched() -> int:
    """Return how many names of torch.distributed and of tensors' classes are functions of ours."""
    places = (dist, dist.distributed_c10d, torch.Tensor, torch.autograd, torch.optim.Optimizer, dist.Work)
    with warnings.catch_warnings():
        # Torch warns of old names as soon as they are asked for their module.
        warnings.simplefilter("ignore")
        values = [value for place in places for value in vars(place).values()]
        return sum(str(getattr(value, "__module__", "")).startswith("shardtoll") for value in values)


def measure(options: argparse.Namespace) -> Result:
    """Open the sessions and return what grew."""
    with tempfile.TemporaryDirectory() as folder:
        # Forgets what earlier programs left where temporary folders go.
        tempfile.tempdir = folder
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16))
        first = max(options.sessions // 10, 3)
        before: dict[str, float] = {}
        tenths: list[float] = []
        for number in range(options.sessions):
            if number and number % max(options.sessions // 10, 1) == 0:
                tenths.append(_sizes()["resident_bytes"])
            if number == first:
                before = _sizes()
            with audit(model, level=LEVELS[number % len(LEVELS)]) as session:
                for _ in range(2):
                    with session.step():
                        model(torch.ones(4, 16)).sum().backward()
            del session
        after = _sizes()
        dist.destroy_process_group()
    grown = {name: after[name] - before[name] for name in before}
    figures: dict[str, float | None] = {"sessions": float(options.sessions), "counted_from": float(first)}
    figures |= {f"grown_{name}": value for name, value in grown.items()}
    figures["grown_bytes_per_session"] = grown["resident_bytes"] / (options.sessions - first)
    steps = zip(tenths, [*tenths[1:], after["resident_bytes"]], strict=True)
    figures |= {f"grown_bytes_tenth_{number}": end - begin for number, (begin, end) in enumerate(steps, 2)}
    half = tenths[len(tenths) // 2]
    figures["grown_bytes_per_session_last_half"] = (after["resident_bytes"] - half) / (options.sessions / 2)
    aims = {f"grown_{name}": 0.0 for name in ("threads", "files", "folders", "patched", "keys")}
    return Result(figures, aims)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sessions", type=int, default=3000)


if __name__ == "__main__":
    main(measure, about=__doc__ or "", options=_options)
