"""How long the budget plugin takes to catch a planted implicit all-gather at world size 1,024.

A pull request's test suite in one process: four tensor-parallel MLPs over a fake process group of 128 x 8
ranks, once as they should be and once with a norm over the axis that is cut, for which DTensor gathers it.
`suite_s` is the whole of `pytest` from its start to its end, torch's import included, `catch_s` the failing
test alone: 1,024 ranks, the model, the step and the judging. Beside them the same step on the same mesh
under torch's own CommDebugMode, which counts and judges nothing: `step_over_debug` is the step recorded over
the step counted, `test_over_debug` all of the test over one that does the same with CommDebugMode. Median of
`--repeats` runs of pytest, each a process of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from harness import Result, Spread, main

WORLD: Final = 1024
SUITE: Final = """
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import layer_norm
from torch.testing._internal.distributed.fake_pg import FakeStore

MESH = {"dp": 128, "tp": 8}


class MLP(nn.Module):
    def __init__(self, planted):
        super().__init__()
        self.up = nn.Linear(256, 1024, bias=False)
        self.down = nn.Linear(1024, 256, bias=False)
        self.planted = planted

    def forward(self, x):
        hidden = torch.relu(self.up(x))
        if self.planted:
            hidden = layer_norm(hidden, hidden.shape[-1:])
        return self.down(hidden)


def build(mesh, planted):
    model = nn.Sequential(*(MLP(planted) for _ in range(4)))
    for block in model:
        styles = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
        parallelize_module(block, mesh["tp"], styles)
    return model


def step(model):
    started = time.perf_counter()
    model(torch.randn(32, 256)).square().mean().backward()
    return time.perf_counter() - started


@pytest.mark.parametrize("planted", [False, True])
def test_debug(planted):
    started = time.perf_counter()
    dist.init_process_group("fake", rank=0, world_size=1024, store=FakeStore())
    mesh = init_device_mesh("cpu", tuple(MESH.values()), mesh_dim_names=tuple(MESH))
    model = build(mesh, planted)
    with CommDebugMode() as seen:
        took = step(model)
    dist.destroy_process_group()
    print(f"debug-{planted} step {took:.6f} test {time.perf_counter() - started:.6f}")
    assert seen.get_total_counts()


@pytest.mark.parametrize("planted", [False, True])
def test_budget(comm_budget, planted):
    started = time.perf_counter()
    took = 0.0
    try:
        with comm_budget(mesh=MESH, no_implicit=["*"]) as job:
            model = build(job.mesh, planted)
            with job.step():
                took = step(model)
    finally:
        print(f"budget-{planted} step {took:.6f} test {time.perf_counter() - started:.6f}")
"""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5, help="runs of pytest of each kind (default 5)")


def _run(folder: Path, chosen: str) -> tuple[float, str]:
    """Return how long pytest took and what it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:shardtoll"]
    command += ["-p", "shardtoll.profiler.pytest_plugin", "-k", chosen, str(folder)]
    started = time.perf_counter()
    # A checkout's own settings are none of the suite's.
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, cwd=folder, env=os.environ | {"COLUMNS": "200"}
    )
    return time.perf_counter() - started, done.stdout + done.stderr


def measure(arguments: argparse.Namespace) -> Result:
    """Return the figures; RuntimeError where the plugin caught nothing, or what was not there."""
    suite: list[float] = []
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_step.py").write_text(SUITE)
        for _ in range(arguments.repeats):
            took, text = _run(folder, "budget and True")
            suite.append(took)
            if "1 failed" not in text or "implicit all_gather" not in text:
                raise RuntimeError(f"the planted all-gather was not caught:\n{text[-4000:]}")
            # One process a test: whichever runs second in a process finds torch's parts imported.
            for chosen in ("budget and False", "debug and True", "debug and False"):
                text += _run(folder, chosen)[1]
            for kind, step, test in re.findall(r"^(\S+) step (\S+) test (\S+)$", text, flags=re.MULTILINE):
                found.setdefault(f"{kind} step", []).append(float(step))
                found.setdefault(f"{kind} test", []).append(float(test))
            if "budget-False" not in text or text.count("1 failed") != 1:
                raise RuntimeError(f"a step without implicit collectives did not pass:\n{text[-4000:]}")
    at = {key: Spread.of(values) for key, values in found.items()}
    return Result(
        {
            "world_size": WORLD,
            "suite_s": Spread.of(suite).median,
            "suite_high_s": Spread.of(suite).high,
            "catch_s": at["budget-True test"].median,
            "pass_s": at["budget-False test"].median,
            "debug_test_s": at["debug-True test"].median,
            "step_over_debug": at["budget-True step"].median / at["debug-True step"].median,
            "test_over_debug": at["budget-True test"].median / at["debug-True test"].median,
        },
        {"suite_s": 10.0},
    )


if __name__ == "__main__":
    main(measure, about=__doc__, options=_options)
