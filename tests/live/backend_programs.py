"""The same step over process groups that were made in several ways."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from shardtoll.ledger import Report
from shardtoll.profiler import audit
from tests.live.told_kinds import report_of

D = 128


def stepped(group: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(D, D), process_group=group)
    with audit(model, level="survey") as session:
        for _ in range(3):
            with session.step():
                model(torch.randn(4, D)).sum().backward()
    report = report_of(session)
    return {} if report is None else facts(report)


def facts(report: Report) -> dict[str, Any]:
    rows = report.collectives
    reduced = rows[rows["op"] == "all_reduce"]
    return {
        "backend": report.run.backend,
        "groups": sorted({str(group.backend) for group in report.groups}),
        "fabric": report.fabric.name,
        "without floor": int(reduced["floor_ns"].isna().sum()),
        "reduced": len(reduced),
    }


def every_way() -> dict[str, Any]:
    """Over a default group that was made by device, and over groups that were made in other ways."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    return {
        "by device": stepped(None),
        "inherited": stepped(dist.new_group([0, 1])),
        "by name": stepped(dist.new_group([0, 1], backend="gloo")),
        "mesh": stepped(mesh.get_group()),
    }
