"""`comm_budget`: in this process, in a suite of its own, under torchrun; with real, fake and given groups."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.entry.budgeted import CommBudget
from tests.live import warm
from tests.live.launch import ROOT

pytestmark = pytest.mark.live

PLUGIN = [
    "-p",
    "no:cacheprovider",
    "-p",
    "no:dash",
    "-p",
    "no:shardtoll",
    "-p",
    "shardtoll.profiler.pytest_plugin",
]


class OverBudget(Exception):
    def __init__(self, text: str, pytrace: bool) -> None:
        assert not pytrace
        super().__init__(text)


@pytest.fixture
def comm_budget() -> CommBudget:
    return CommBudget(OverBudget)


def suite(*arguments: str, launcher: tuple[str, ...] = (sys.executable,)) -> subprocess.CompletedProcess[str]:
    """Run pytest on its own, with warnings as errors and none of this suite's settings."""
    # Where CI or BUILD_NUMBER is set pytest prints each message a second time, in its summary.
    unset = ("RANK", "WORLD_SIZE", "CI", "BUILD_NUMBER", "PYTEST_ADDOPTS")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [*launcher, "-m", "pytest", "-q", "-W", "error", "-c", "/dev/null", *PLUGIN, *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=ROOT,
        env=environment | {"COLUMNS": "200"},
    )


def test_a_planted_implicit_gather_is_caught_at_world_size_1024(comm_budget: CommBudget):
    with pytest.raises(OverBudget) as caught:  # noqa: PT012 - what the `with` of the fixture holds
        with comm_budget(mesh={"tp": 1024}, no_implicit=["*"], max_wire_bytes=10**6) as job:
            weight = DTensor.from_local(torch.randn(64, 4, requires_grad=True), job.mesh, [Shard(1)])
            rows = DTensor.from_local(torch.randn(4, 64), job.mesh, [Shard(0)])
            with job.step():
                rows @ weight
    # Whichever side is gathered, 1,023 ranks' parts of 1 KiB come to each.
    text = str(caught.value)
    assert "max_wire_bytes: 1.05 MB (1,047,552 bytes), 1.00 MB (1,000,000 bytes) allowed" in text
    assert re.search(r'no_implicit "\*": 1 implicit all_gather of \(Shard\(\d\)\) -> \(Replicate\(\)\)', text)
    assert "for aten.mm.default" in text
    assert "test_budget_plugin.py" in text
    assert not dist.is_initialized()


def test_figures_of_a_fake_job_follow_the_closed_form(comm_budget: CommBudget):
    for size in (2, 8, 1024):
        with comm_budget.record(world_size=size, rank=size - 1) as job:
            assert (dist.get_world_size(), dist.get_rank()) == (size, size - 1)
            dist.all_reduce(torch.ones(256))
            dist.broadcast(torch.ones(4), 0)
        assert job.collectives == 2
        assert job.by_op == {"all_reduce": 1, "broadcast": 1}
        assert job.wire_bytes == -(-2 * (size - 1) * 1024 // size) + 16
        assert job.implicit == []
        assert job.check.passed
        assert job.report.run.world_size == size


def test_ddp_reduces_over_a_fake_group_too(comm_budget: CommBudget):
    original = DistributedDataParallel.forward
    with comm_budget.record(world_size=1024) as job:
        model = DistributedDataParallel(torch.nn.Linear(8, 8))
        with job.step():
            model(torch.randn(2, 8)).sum().backward()
    assert job.by_op == {"all_reduce": 1}
    assert job.wire_bytes == 576  # 2 (n-1)/n of the gradient's 288 bytes, rounded up
    assert model.module.weight.grad is not None
    assert DistributedDataParallel.forward is original


def test_alone_it_is_a_gloo_group_of_one_and_only_steps_count(comm_budget: CommBudget):
    with comm_budget(max_collectives=1, max_wire_bytes=0) as job:
        dist.all_reduce(torch.ones(4))
        for _ in range(2):
            with job.step():
                dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(4))
    assert job.collectives == 1
    with pytest.raises(OverBudget, match="max_collectives: 1 collective, 0 collectives allowed"):
        with comm_budget(max_collectives=0):
            dist.all_reduce(torch.ones(4))


def test_a_group_that_is_there_is_used_and_left(comm_budget: CommBudget):
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    try:
        with comm_budget(world_size=4, max_collectives=1, mesh=(2, 2)):
            dist.all_reduce(torch.ones(4))
        for wanted in ({"world_size": 8}, {"mesh": {"a": 8}}, {"world_size": 4, "rank": 2}):
            with pytest.raises(UsageError, match="the process group that exists already"):
                with comm_budget(max_collectives=1, **wanted):  # type: ignore[arg-type]
                    raise AssertionError("opened")
        assert dist.get_world_size() == 4
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "limits nothing"),
        ({"max_colectives": 3}, "did you mean max_collectives?"),
        ({"budget": "nowhere.toml"}, "cannot be read"),
        ({"budget": "nowhere.toml", "max_collectives": 1}, "cannot be read"),
        ({"max_collectives": 1, "world_size": 0}, "world_size is 0"),
        ({"max_collectives": 1, "world_size": True}, "world_size is True"),
        ({"max_collectives": 1, "world_size": 10**9}, "at most"),
        ({"max_collectives": 1, "world_size": 8, "mesh": (2, 2)}, "leave out world_size"),
        ({"max_collectives": 1, "mesh": "tp"}, "give mesh="),
        ({"max_collectives": 1, "mesh": {}}, "no dimension"),
        ({"max_collectives": 1, "mesh": {1: 2}}, "name its dimensions"),
        ({"max_collectives": 1, "world_size": 8, "rank": 8}, "ranks count from 0"),
        ({"max_step_ms": 5, "world_size": 8}, "transfers nothing"),
        ({"phase": {"forward": {"max_exposed_fraction": 0.5}}, "world_size": 8}, "transfers nothing"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(
    comm_budget: CommBudget, arguments: dict[str, object], said: str
):
    with pytest.raises(UsageError, match=re.escape(said)):
        with comm_budget(**arguments):  # type: ignore[arg-type]
            raise AssertionError("opened")
    assert not dist.is_initialized()


def test_the_programs_own_error_goes_first(comm_budget: CommBudget):
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - what the `with` of the fixture holds
        with comm_budget(world_size=8, max_collectives=0) as job:
            with pytest.raises(UsageError, match="after the `with`"):
                print(job.collectives)
            dist.all_reduce(torch.ones(4))
            raise ZeroDivisionError
    assert not dist.is_initialized()


def test_a_test_may_end_the_group_itself(comm_budget: CommBudget):
    with comm_budget(world_size=8, max_collectives=1):
        dist.all_reduce(torch.ones(4))
        dist.destroy_process_group()


def test_the_samples_and_the_documents_tests_run_in_a_suite_of_their_own(tmp_path: Path):
    text = (ROOT / "docs" / "budgets.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "test_docs.py").write_text(code)
    # Nothing of ours may be imported for a suite that does not ask for the fixture.
    (tmp_path / "test_cheap.py").write_text(
        "import sys\nHEAVY = {'torch', 'pandas', 'shardtoll.ledger'} & set(sys.modules)\n"
        "def test_cheap():\n    assert not HEAVY\n"
    )
    done = suite(str(tmp_path / "test_cheap.py"), str(tmp_path / "test_docs.py"), "samples/budget")
    assert "1 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("no_implicit") == 4
    for line in ("samples/dit_modulation/dtensor.py:57", "samples/dit_modulation/dtensor.py:59"):
        assert line in done.stdout


def test_under_a_launcher_all_ranks_fail_or_none(tmp_path: Path):
    (tmp_path / "test_ranks.py").write_text(
        "import torch, torch.distributed as dist\n"
        "def test_within(comm_budget):\n"
        "    with comm_budget(world_size=2, max_wire_bytes=16):\n"
        "        dist.all_reduce(torch.ones(4))\n"
        "def test_over(comm_budget):\n"
        "    with comm_budget(max_collectives=0):\n"
        "        dist.all_reduce(torch.ones(4))\n"
    )
    launcher = (warm.python(), "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    done = suite(str(tmp_path / "test_ranks.py"), launcher=launcher)
    assert done.stdout.count("1 failed, 1 passed") == 2, done.stdout + done.stderr
    assert done.stdout.count("max_collectives: 1 collective, 0 collectives allowed") >= 2
