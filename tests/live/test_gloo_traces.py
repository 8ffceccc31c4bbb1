"""Traces that torch's profiler makes of jobs on CPUs: gloo's operations keep their names, and ranks match."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from shardtoll.analyzers import run
from shardtoll.ledger import Report
from shardtoll.profiler.traces import read_traces
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

RANKS = 2
STEPS = 3
DIM = 64


def _model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=(kind,))
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "tp":
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (model[0], model[2], model):  # type: ignore[index]
        fully_shard(layer, mesh=mesh)
    return model


def _every_operation() -> None:
    rank, whole, part = dist.get_rank(), torch.ones(4096), torch.ones(2048)
    few, lists = torch.ones(4), [torch.ones(4) for _ in range(RANKS)]
    dist.all_reduce(whole)
    dist.reduce_scatter_tensor(part, whole)
    dist.all_gather_into_tensor(whole, part)
    dist.reduce_scatter(few, lists)
    dist.all_reduce(few)
    dist.broadcast(few, 0)
    dist.scatter(few, lists if rank == 0 else None, 0)
    dist.barrier()
    work = [dist.all_reduce(whole, async_op=True), dist.all_reduce(few, async_op=True)]
    for each in work:
        each.wait()


def record(kind: str, folder: str, marked: bool) -> dict[str, Any]:
    """Train three steps under torch's profiler; `marked`: with `prof.step()` after each."""
    model = None if kind == "raw" else _model(kind)

    def step() -> None:
        if model is None:
            _every_operation()
        else:
            model(torch.ones(8, DIM)).sum().backward()

    # DDP lays its buckets out anew before its second step.
    step()
    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(STEPS):
            step()
            if marked:
                profiler.step()
    path = Path(folder) / f"rank{dist.get_rank()}.json"
    profiler.export_chrome_trace(str(path))
    if '"host_name"' not in path.read_text():
        # Older versions of torch name the host only in the file names of their trace handler.
        path.rename(path.with_name(f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}.pt.trace.json"))
    return {}


def reported(kind: str, folder: Path, marked: bool = False) -> Report:
    run_ranks(record, RANKS, kind, str(folder), marked)
    (job,) = read_traces([str(folder)], jobs=1, cache=False)
    return run(job.ledger)


UNIT = 4 * DIM * 2 * DIM
"""Bytes of a layer's weight."""
WANTED = {
    "ddp": Counter({("all_reduce", 2 * UNIT + 4 * 3 * DIM): STEPS}),
    "tp": Counter({("all_reduce", 4 * 8 * DIM): STEPS}),
    "fsdp": Counter(
        {
            ("all_gather", UNIT + 8 * DIM): 2 * STEPS,
            ("all_gather", UNIT + 4 * DIM): 2 * STEPS,
            ("reduce_scatter", UNIT + 8 * DIM): STEPS,
            ("reduce_scatter", UNIT + 4 * DIM): STEPS,
        }
    ),
    "raw": Counter(
        {
            ("all_reduce", 16384): 2 * STEPS,
            ("reduce_scatter", 16384): STEPS,
            ("all_gather", 16384): STEPS,
            ("reduce_scatter", 32): STEPS,
            ("all_reduce", 16): 2 * STEPS,
            ("broadcast", 16): STEPS,
            ("scatter", 32): STEPS,
            ("barrier", 0): STEPS,
        }
    ),
}


@pytest.mark.parametrize("kind", WANTED)
@pytest.mark.parametrize("marked", [False, True])
def test_operations_keep_their_names_and_ranks_match(kind: str, marked: bool, tmp_path: Path) -> None:
    report = reported(kind, tmp_path, marked)
    rows = report.collectives
    first = rows[rows["rank"] == 0]
    assert Counter(zip(first["op"], first["message_bytes"], strict=True)) == WANTED[kind]
    # A receiver of gloo's scatter does not say how much it gets.
    sized = rows[rows["op"] != "scatter"]
    assert sized["match_id"].notna().all()
    assert (sized.groupby("match_id")["rank"].nunique() == RANKS).all()
    assert "unmatched-collectives" not in {finding.kind for finding in report.findings}
    advice = " ".join(finding.remedy.text for finding in report.findings if finding.remedy is not None)
    assert "CUDA" not in advice
