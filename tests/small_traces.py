"""Small traces of a job with NCCL kernels, as torch.profiler writes them; for tests of what reads many."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

BASE_US = 1_760_000_000_000_000
STEP_US = 1000


def trace(
    rank: int,
    world_size: int | None = 2,
    *,
    steps: tuple[int, ...] = (3, 4),
    at_us: int = 0,
    told_rank: bool = True,
    group: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """Return the trace of one rank: each step a matmul, then an all_reduce."""
    events: list[dict[str, Any]] = []
    ranks = list(group or range(world_size or 1))
    for nth, step in enumerate(steps):
        start = BASE_US + at_us + nth * STEP_US

        def add(name: str, cat: str, ts: float, dur: float, tid: int = 1, **args: Any) -> None:
            events.append(
                {
                    "ph": "X",
                    "cat": cat,
                    "name": name,
                    "pid": 100,
                    "tid": tid,
                    "ts": ts,
                    "dur": dur,
                    "args": args,
                }
            )

        add(f"ProfilerStep#{step}", "user_annotation", start, STEP_US - 1)
        comm = {
            "Collective name": "allreduce",
            "dtype": "Float",
            "In msg nelems": 4096,
            "Out msg nelems": 4096,
            "Group size": len(ranks),
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": ranks,
        }
        for place, (name, ts, dur, args) in enumerate(
            [
                ("gemm", start + 50, 300 + 10 * rank, {}),
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", start + 360 + 10 * rank, 400 - 10 * rank, comm),
            ]
        ):
            link = 10 * step + place + 1
            add("cudaLaunchKernel", "cuda_runtime", start + 10 + place, 0.5, correlation=link)
            add(name, "kernel", ts, dur, 7, correlation=link, device=0, stream=7, **args)
    made: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Test GPU"}]}
    if told_rank:
        made["distributedInfo"] = {"backend": "nccl", "rank": rank}
        if world_size is not None:
            made["distributedInfo"]["world_size"] = world_size
    return {**made, "traceEvents": events}


def write(path: Path, made: dict[str, Any]) -> Path:
    """Write a trace; packed where the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(made).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def write_job(folder: Path, ranks: int = 2, **options: Any) -> Path:
    """Write the traces of a job, rank0.json.gz and on."""
    for rank in range(ranks):
        write(folder / f"rank{rank}.json.gz", trace(rank, ranks, **options))
    return folder
