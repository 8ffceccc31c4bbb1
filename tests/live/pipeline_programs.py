"""Pipelines under torch.distributed.pipelining whose last rank works longest: schedules, meshes, tracing.

Stages sleep: what a stage takes is known, and needs no core. The first step of each audit is the schedule's
first one, which also sends the messages that set it up.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
    SplitPoint,
    pipeline,
)

from shardtoll.ledger import Report
from shardtoll.profiler import audit
from tests.live.abilities import STAGES_NEXT_TO_EACH_OTHER

CPU = torch.device("cpu")
SHORT_S = 0.002
LONG_S = 0.03
STEPS = 3
D = 8


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return grad, None


class Sleeper(nn.Module):
    """A linear layer after a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Sleep.apply(self.linear(x), self.seconds)  # type: ignore[no-any-return, no-untyped-call]


def audited(schedule: Any, model: nn.Module, ends: tuple[bool, bool], rows: int) -> dict[str, Any]:
    """What an audit from the schedule's first step on says; `ends`: whether first and last stage are here."""
    inputs = (torch.ones(rows, D),) if ends[0] else ()
    target = {"target": torch.zeros(rows, D)} if ends[1] else {}
    with audit(model, level="survey") as session:
        for _ in range(STEPS):
            with session.step():
                schedule.step(*inputs, **target)
                model.zero_grad()
    return facts(session.report())


def facts(report: Report | None) -> dict[str, Any]:
    if report is None:
        return {}
    assert report.pipelines is not None, report.verdict
    rows = report.collectives
    messages = rows[rows["op"].isin(["send", "recv"])]
    set_up = messages[messages["caused_by_op"].str.endswith(".set_up")]
    return {
        "lines": [list(line) for line in report.pipelines.lines],
        "micro_batches": report.pipelines.micro_batches,
        "findings": {
            finding.kind: [list(finding.ranks), finding.title]
            for finding in report.findings
            if finding.kind.startswith("pipeline")
        },
        "loud": [
            f"{finding.kind}: {finding.title}"
            for finding in report.findings
            if finding.severity == "error" or finding.kind == "below-roofline"
        ],
        "set_up": sorted({f"{row.step}:{row.phase}" for row in set_up.itertuples()}),
        "phases": sorted(set(messages.loc[messages.index.difference(set_up.index), "phase"])),
        "verdict": report.verdict,
    }


def _mse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output, target)


def single(kind: Any, *, uneven: bool, dim: str | None = None) -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = None if dim is None else init_device_mesh("cpu", (ranks,), mesh_dim_names=(dim,))
    module = Sleeper(SHORT_S if uneven and rank < ranks - 1 else LONG_S)
    stage = PipelineStage(module, rank, ranks, CPU, group=None if mesh is None else mesh.get_group())
    schedule = kind(stage, n_microbatches=4, loss_fn=_mse)
    return audited(schedule, module, (rank == 0, rank == ranks - 1), 8)


def several(kind: Any) -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    held = [rank, 2 * ranks - 1 - rank] if kind is ScheduleZBVZeroBubble else [rank, rank + ranks]
    modules = nn.ModuleList(Sleeper(LONG_S if rank == ranks - 1 else SHORT_S) for _ in held)
    stages = [
        PipelineStage(module, stage, 2 * ranks, CPU) for stage, module in zip(held, modules, strict=True)
    ]
    schedule = kind(stages, n_microbatches=2 * ranks, loss_fn=_mse)
    return audited(schedule, modules, (0 in held, 2 * ranks - 1 in held), 4 * ranks)


def traced() -> dict[str, Any]:
    """Cut from one traced model, as PiPPy does it: the last stage has five layers, the others one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = nn.Sequential(*[nn.Linear(D, D) for _ in range(ranks - 1)], nn.Sequential(*map(wide, range(5))))
    cuts = {str(place): SplitPoint.BEGINNING for place in range(1, ranks)}
    pipe = pipeline(whole, (torch.ones(2, D),), split_spec=cuts)
    stage = pipe.build_stage(rank, CPU)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=_mse)
    return audited(schedule, stage.submod, (rank == 0, rank == ranks - 1), 8)


def wide(_: int) -> nn.Module:
    return nn.Sequential(nn.Linear(D, 2048), nn.Linear(2048, 2048), nn.Linear(2048, D))


class Dims:
    """Holds a job's meshes where no variable does, as a trainer does."""

    def __init__(self, shape: tuple[int, ...], names: tuple[str, ...]) -> None:
        self.meshes: dict[str, DeviceMesh] = {"world": init_device_mesh("cpu", shape, mesh_dim_names=names)}


def sliced() -> dict[str, Any]:
    """A slice of a mesh for the pipeline, another for FSDP2 inside each stage."""
    from torch.distributed.fsdp import fully_shard

    dims = Dims((2, dist.get_world_size() // 2), ("pp", "dp_shard"))
    mesh = dims.meshes["world"]["pp"]
    place = mesh.get_local_rank()
    module = Sleeper(SHORT_S if place == 0 else LONG_S)
    fully_shard(module, mesh=dims.meshes["world"]["dp_shard"])
    stage = PipelineStage(module, place, 2, CPU, group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=_mse)
    return audited(schedule, module, (place == 0, place == 1), 8)


def all_pipelines() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "gpipe": single(ScheduleGPipe, uneven=True),
        "1f1b even": single(Schedule1F1B, uneven=False),
        "1f1b in capitals": single(Schedule1F1B, uneven=True, dim="PP"),
        "interleaved": several(ScheduleInterleaved1F1B),
        **({"zero bubble": several(ScheduleZBVZeroBubble)} if STAGES_NEXT_TO_EACH_OTHER else {}),
        "traced": traced(),
        "sliced": sliced(),
    }
