"""Runs the data-parallel samples on real ranks and returns what the audit wrote of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from shardtoll.samples.strategies import common


@contextmanager
def _object_sizes(into: list[int]) -> Iterator[None]:
    """Note how many bytes torch makes of each object it sends, in order: what the closed forms start from."""
    c10d: Any = dist.distributed_c10d
    original = c10d._object_to_tensor

    def noting(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        into.append(int(made[0].numel()))
        return made

    c10d._object_to_tensor = noting
    try:
        yield
    finally:
        c10d._object_to_tensor = original


def rows_of(names: list[str], compiled: bool = False) -> dict[str, Any]:
    """Run each `module.variant` under an audit; rank 0 returns all ranks' rows of it."""
    found: dict[str, Any] = {}
    options = common.Options(device="cpu")
    for name in names:
        module, variant = name.split(".")
        variants = importlib.import_module(f"shardtoll.samples.strategies.{module}").VARIANTS
        job = variants[variant](options, torch.device("cpu"))
        if compiled:
            job.model.compile(backend="aot_eager")
        sizes: list[int] = []
        with _object_sizes(sizes):
            session, losses = common.train(job, options)
        # Those of the last of the three steps.
        found[name] = {"sizes": sizes[-(len(sizes) // (options.steps + 1)) :] if sizes else []}
        found[name]["losses"] = [float(loss) for loss in losses]
        report = session.report()
        if report is not None:
            tables = {key: report.tables[key].to_pylist() for key in ("steps", "collectives", "counts")}
            phases = report.tables["computes"].select(["step", "rank", "phase", "flops"]).to_pylist()
            found[name] |= tables
            found[name]["computes"] = phases
            found[name]["groups"] = [[group.name, list(group.ranks)] for group in report.groups]
            found[name]["kinds"] = sorted({finding.kind for finding in report.findings})
        dist.barrier()
    return found


def compiled_frames(names: list[str]) -> dict[str, Any]:
    """Run them compiled, with the number of graphs that were compiled."""
    from torch._dynamo.utils import counters

    found: dict[str, Any] = {}
    for name in names:
        torch._dynamo.reset()
        counters.clear()
        found |= rows_of([name], compiled=True)
        found[name]["graphs"] = counters["stats"]["unique_graphs"]
    return found
