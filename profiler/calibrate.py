"""Measures what collectives cost on the process groups of this job.

    torchrun --nproc-per-node 4 -m shardtoll.profiler.calibrate -o points.json

Times each op at each message size as nccl-tests does: all ranks start together, the slowest rank's time
counts, and several repeats are kept so that the fit can use the best and judge the spread. The points
are plain JSON; the analyzers fit a fabric to them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

DEFAULT_OPS: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier")
DEFAULT_SIZES_BYTES: Final = tuple(256 * 8**power for power in range(6))
"""256 B to 8 MiB: from where only latency counts to where only bandwidth does."""
DEFAULT_LIMIT_S: Final = 8.0
_WARM_UPS: Final = 2
_LEAST_REPEATS: Final = 5
_MOST_REPEATS: Final = 40
_ITEM: Final = 4


def _call(op: str, message_bytes: int, device: torch.device) -> Callable[[], Any]:
    """Return what issues one collective of that message size (nccl-tests' definition) and waits for it."""
    world = dist.get_world_size()
    whole = torch.ones(max(world, message_bytes // _ITEM // world * world), device=device)
    part = torch.ones(whole.numel() // world, device=device)
    # torch 2.13 renamed these two and warns about the old names.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: all_gather(whole, part),
        "reduce_scatter": lambda: reduce_scatter(part, whole),
        "broadcast": lambda: dist.broadcast(whole, src=0),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "barrier": lambda: dist.barrier(),
    }
    return calls[op]


def _time_once(call: Callable[[], Any], device: torch.device) -> int:
    dist.barrier()
    begun_ns = time.perf_counter_ns()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter_ns() - begun_ns


def measure(
    ops: Sequence[str] = DEFAULT_OPS,
    sizes_bytes: Sequence[int] = DEFAULT_SIZES_BYTES,
    *,
    limit_s: float = DEFAULT_LIMIT_S,
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Time every op at every size on the default group; call it on all of its ranks.

    Returns the same list on every rank: `{op, group_size, message_bytes, time_ns}`, one entry a
    repeat, the time being the slowest rank's. Repeats go round the list of collectives until the time
    limit, so that a disturbance does not fall on one of them alone.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend() else None
    device = device or torch.device("cpu")
    world = dist.get_world_size()
    cases = list(_cases(ops, sizes_bytes, world))
    calls = [_call(op, size, device) for op, size in cases]
    for call in calls:
        for _ in range(_WARM_UPS):
            _time_once(call, device)
    points: list[dict[str, Any]] = []
    deadline_s = time.monotonic() + limit_s
    for repeat in range(_MOST_REPEATS):
        own = torch.tensor([_time_once(call, device) for call in calls], dtype=torch.int64, device=device)
        dist.all_reduce(own, op=dist.ReduceOp.MAX)
        points += [
            {"op": op, "group_size": world, "message_bytes": size, "time_ns": int(slowest)}
            for (op, size), slowest in zip(cases, own.tolist(), strict=True)
        ]
        if progress is not None:
            progress(f"{repeat + 1} repeats of {len(cases)} collectives")
        # Rank 0's clock decides for all: ranks that disagree would wait for each other forever.
        late = torch.tensor([time.monotonic() > deadline_s and repeat + 1 >= _LEAST_REPEATS], device=device)
        late = late.to(torch.int32)
        dist.broadcast(late, src=0)
        if late.item():
            break
    return points


def _cases(ops: Sequence[str], sizes_bytes: Sequence[int], world: int) -> Iterator[tuple[str, int]]:
    for op in ops:
        if op == "barrier":
            yield op, 0
            continue
        # Rounded down to whole elements for each rank, as the tensors are.
        sizes = {max(world, size // _ITEM // world * world) * _ITEM for size in sizes_bytes}
        for size in sorted(sizes):
            yield op, size


def main(arguments: Sequence[str] | None = None) -> None:
    """Join the job that torchrun describes, measure, and write the points on rank 0."""
    parser = argparse.ArgumentParser(prog="shardtoll.profiler.calibrate", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write on rank 0")
    parser.add_argument("--limit-s", type=float, default=DEFAULT_LIMIT_S, help="seconds to measure for")
    chosen = parser.parse_args(arguments)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    points = measure(limit_s=chosen.limit_s)
    if dist.get_rank() == 0:
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(json.dumps({"points": points}))
    dist.barrier()
    sys.stdout.flush()
    # Interpreter shutdown with gloo's threads alive sometimes aborts after all is written.
    os._exit(0)


if __name__ == "__main__":
    main()
