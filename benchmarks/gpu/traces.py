"""Recordings of torch's profiler on this card, small enough to be kept as test data.

Two steps of a decoder under DDP, under FSDP2, and alone with its blocks recomputed. shardtoll reads each, and
must find its steps. `traces.tar` holds them.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from gpu.decoder import TINY, Decoder, Size, batch, trainer
from gpu.place import Place, one_rank, part
from gpu.sheet import Sheet
from shardtoll.profiler.traces import read_traces

REAL: Final = Size(4, 1_024, 16, vocabulary=8_192, positions=1_024, batch=4)
STEPS: Final = 2
MOST_BYTES: Final = 4_000_000
"""Of one recording, compressed: what a test may carry."""


def _step(place: Place, kind: str) -> Callable[[], Any]:
    size = TINY if place.rehearses else REAL
    torch.manual_seed(0)
    model: Any = Decoder(size, recompute=kind == "recompute").to(place.device, place.dtype)
    if kind == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif kind == "fsdp2":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    step = trainer(model, batch(size, place.device))
    for _ in range(2):
        step()
    place.synchronize()
    return step


def _record(place: Place, step: Callable[[], Any], into: Path) -> None:
    plain = into.with_suffix("")
    # Only a profiler with a schedule marks where steps begin.
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with torch.profiler.profile(
        activities=place.activities, schedule=schedule, record_shapes=True
    ) as profiler:
        for _ in range(1 + STEPS):
            step()
            place.synchronize()
            profiler.step()
    profiler.export_chrome_trace(str(plain))
    with plain.open("rb") as source, gzip.open(into, "wb", compresslevel=9) as target:
        shutil.copyfileobj(source, target)
    plain.unlink()


def measure(sheet: Sheet, place: Place, out: Path) -> None:
    """Record, read back, and pack."""
    with tempfile.TemporaryDirectory() as folder, one_rank(place):
        for kind in ("ddp", "fsdp2", "recompute"):
            path = Path(folder, f"{kind}.rank0.json.gz")
            _record(place, _step(place, kind), path)
            size_bytes = path.stat().st_size
            sheet.check(
                f"{kind}: bytes at most {MOST_BYTES:,}", size_bytes, MOST_BYTES, ok=size_bytes <= MOST_BYTES
            )
            (job,) = read_traces([str(path)], jobs=1, cache=False)
            steps = len(job.ledger.tables["steps"])
            sheet.check(f"{kind}: shardtoll reads its steps", steps, STEPS, ok=steps >= STEPS)
        with tarfile.open(out / "traces.tar", "w") as tar:
            for path in sorted(Path(folder).glob("*.json.gz")):
                tar.add(path, arcname=path.name)


if __name__ == "__main__":
    part("traces", measure, __doc__ or "")
