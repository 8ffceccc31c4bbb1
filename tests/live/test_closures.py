"""Closures of optimizers on real ranks: phases, findings, gradients; `shardtoll run` counts their steps."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.live import closure_programs as programs
from tests.live import warm
from tests.live.launch import ROOT, run_ranks

SCRIPT = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
parameters = model.parameters()
# Each rank has a loss of its own: LBFGS may stop by the gradients only, which DDP makes equal on all ranks.
optimizer = (
    torch.optim.LBFGS(parameters, max_iter=4, tolerance_change=0)
    if sys.argv[1] == "lbfgs"
    else torch.optim.Adam(parameters)
)
x = torch.randn(8, 32) + dist.get_rank()
def closure():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss
for _ in range(5):
    optimizer.step(closure)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    outcome: dict[str, Any] = run_ranks(programs.all_closures, 2)[0]
    return outcome


@pytest.mark.parametrize("name", ["adam", "adam watched", "lbfgs"])
def test_what_a_closure_reduces_is_reduced_in_backward(outcomes: dict[str, Any], name: str) -> None:
    each = outcomes[name]
    # DDP makes one bucket of so small a model, and reduces it once a call.
    assert each["phases"] == {"backward": each["calls"]}
    assert each["calls"] > programs.STEPS if name == "lbfgs" else each["calls"] == programs.STEPS


@pytest.mark.parametrize("name", ["adam", "adam watched", "lbfgs", "checked"])
def test_no_warning_is_about_the_update_or_its_backwards(outcomes: dict[str, Any], name: str) -> None:
    loud = {kind for kind, severity in outcomes[name]["findings"] if severity != "info"}
    assert not loud & {
        "duplicated-compute",
        "sync-every-microbatch",
        "wrong-gradient",
        "unmatched-collectives",
    }


def test_gradients_are_looked_at_when_the_closure_has_made_them(outcomes: dict[str, Any]) -> None:
    assert outcomes["checked"]["gradients"] == ["0.bias", "0.weight", "1.bias", "1.weight"]


@pytest.mark.parametrize("kind", ["adam", "lbfgs"])
def test_run_counts_a_step_for_each_step_of_the_optimizer(tmp_path: Path, kind: str) -> None:
    script, bill = tmp_path / "train.py", tmp_path / "bill.json"
    script.write_text(SCRIPT)
    launcher = (warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command = [*launcher, "-m", "shardtoll.cli", "run", "-o", str(bill), str(script), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(bill.read_text())
    assert {row["step"] for row in document["steps"]} == set(range(5))
    reduced = [row for row in document["collectives"] if row["op"] == "all_reduce"]
    assert {row["phase"] for row in reduced} == {"backward"}
    assert {row["step"] for row in reduced} == set(range(5))
