"""The strategies' samples with all checks on, and the findings that say something is wrong or avoidable."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from shardtoll.cli.incidents.verdict import is_weighed
from shardtoll.profiler import audit
from shardtoll.samples.strategies import common

CHECKS = ("gradients", "replicas", "data")
PIPELINE_LAYERS = 8
STEPS = 2


def weighed_findings(names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Run each `module.variant` under an audit with all checks; rank 0 returns what is weighed, by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    options = common.Options(device="cpu")
    deep = replace(options, sizes=replace(options.sizes, layers=PIPELINE_LAYERS))
    for name in names:
        module, variant = name.split(".")
        variants = importlib.import_module(f"shardtoll.samples.strategies.{module}").VARIANTS
        job = variants[variant](deep if module == "pipeline" else options, torch.device("cpu"))
        # Connects, allocates and plans, which no later step does.
        job.step(0)
        with audit(job.model, level="survey", checks=CHECKS) as session:
            for number in range(1, STEPS + 1):
                with session.step():
                    job.step(number)
        report = session.report()
        if report is not None:
            found[name] = [
                {
                    "kind": finding.kind,
                    "where": [
                        finding.where.parameter,
                        finding.where.module,
                        finding.where.source,
                        finding.where.op,
                        finding.where.mesh_dim,
                    ],
                    "title": finding.title,
                    "severity": finding.severity,
                    "confidence": finding.confidence,
                }
                for finding in report.findings
                if is_weighed(finding)
            ]
            stopped = [notice.text for notice in report.notices if notice.kind == "capture-stopped"]
            assert not stopped, (name, stopped)
        dist.barrier()
    return found
