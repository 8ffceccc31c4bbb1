"""`shardtoll run` on a script nobody edited: the help's examples, exit codes, and output as without us."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shardtoll.ledger import Report, read_run
from tests.live import launch, warm

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORLD = 2
STEPS = 4
GRADIENT_BYTES = 4 * (8 * 16 + 16 + 16 * 4 + 4)
NO_STEP = (
    "shardtoll: no training step was seen in {}: a step ends when a torch optimizer steps; "
    "name another function with --step-on module:function\n"
)
THREADS = """
import os, pathlib, time

print(os.environ["OMP_NUM_THREADS"], flush=True)
pathlib.Path("told" + os.environ["RANK"]).touch()
while len(list(pathlib.Path().glob("told*"))) < 2:
    time.sleep(0.05)
"""
"""Leaves when both ranks have told: the launcher ends the other rank as soon as rank 0 has left."""
BEATING = """
import sys, time
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as rendezvous
from shardtoll.profiler.live.entry.launching import Stopped, start_ranks

init, beat = rendezvous._PeriodicTimer.__init__, rendezvous.DynamicRendezvousHandler._keep_alive
rendezvous._PeriodicTimer.__init__ = lambda timer, every, *rest: init(timer, every / 2500, *rest)

def slow_beat(handler):
    beat(handler)
    sys.stderr.write("heartbeat\\n")
    time.sleep(0.005)

rendezvous.DynamicRendezvousHandler._keep_alive = slow_beat
try:
    start_ranks(1, "waits", [])
except Stopped as stopped:
    number = stopped.number
sys.exit(128 + number)
"""
"""A launcher with 2500 times as many heartbeats, each as slow as on busy cores."""
DOCUMENTATION = launch.ROOT / "docs" / "integrations.md"
MODULES = {"shardtoll": "shardtoll.cli", "torchrun": "torch.distributed.run"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with train.py; the command `shardtoll` is there for torchrun's --no-python."""
    shutil.copy(launch.ROOT / "tests/live/unedited_script.py", tmp_path / "train.py")
    command = tmp_path / "bin" / "shardtoll"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{warm.python()}" -m shardtoll.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(folder: Path, line: str, python: str | None = None) -> subprocess.CompletedProcess[str]:
    name, *arguments = shlex.split(line)
    if name == "torchrun":
        arguments = ["--master-port", str(launch.free_port()), *arguments]
    return subprocess.run(
        [python or warm.python(), "-m", MODULES[name], *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        check=False,
    )


def example(folder: Path, at: int, python: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run one of the three examples of the command's help."""
    shown = run(folder, "shardtoll run --help").stdout.partition("Examples:")[2].partition("\n\n")[0]
    found = [line.strip() for line in shown.strip().splitlines()]
    assert len(found) == 3
    ran = run(folder, found[at], python)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


def test_the_documentation_shows_the_examples_of_the_help(folder: Path) -> None:
    shown = run(folder, "shardtoll run --help").stdout
    (block,) = re.findall(r"^```console\n(.*?)^```$", DOCUMENTATION.read_text(), flags=re.M | re.S)
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    assert len(lines) == 3
    assert [line for line in lines if f"  {line}\n" not in shown] == []


def losses(text: str) -> list[str]:
    # Two ranks write to one pipe: a line's end may come after the other's line.
    return sorted(re.findall(r"(?:loss|held out) [0-9.]+", text))


def check_reductions(rows: list[dict[str, Any]], rank: int, step: int) -> None:
    mine = [row for row in rows if (row["rank"], row["step"]) == (rank, step)]
    gradients = [row for row in mine if row["op"] == "all_reduce"]
    assert sum(row["message_bytes"] for row in gradients) == GRADIENT_BYTES
    assert {row["caused_by_op"] for row in gradients} == {"DistributedDataParallel.reducer"}
    assert {row["phase"] for row in gradients} == {"backward"}
    # DDP agrees on its buckets once, in the first steps.
    assert {row["op"] for row in mine} <= {"all_reduce", "broadcast"}
    assert all(row["source"].startswith("train.py:") for row in gradients)


def test_torchrun_of_the_module_writes_a_run_with_exact_steps(folder: Path) -> None:
    ran = example(folder, 1, sys.executable)
    ledger = read_run(folder / "runs" / "a")
    steps = ledger.tables["steps"].to_pylist()
    assert sorted((s["rank"], s["step"]) for s in steps) == [
        (r, s) for r in range(WORLD) for s in range(STEPS)
    ]
    rows = ledger.tables["collectives"].to_pylist()
    for rank in range(WORLD):
        for step in range(STEPS):
            check_reductions(rows, rank, step)
        # The script's own reductions, before training and after it, are in no step.
        outside = {row["message_bytes"] for row in rows if row["rank"] == rank and row["step"] is None}
        assert {4 * 1000, 4 * 2000} <= outside
    counts = ledger.tables["counts"].to_pylist()
    assert [count for count in counts if count["issued"] != count["recorded"]] == []
    assert [notice["text"] for notice in ledger.tables["notices"].to_pylist()] == []
    assert len(losses(ran.stdout)) == WORLD * (STEPS + 1)


def test_what_the_command_names_lies_where_it_was_given(folder: Path) -> None:
    script = folder / "train.py"
    (folder / "elsewhere").mkdir()
    script.write_text("import os\nos.chdir('elsewhere')\n" + script.read_text())
    ran = run(folder, "shardtoll run --nproc 2 --out runs/a -o bill.json train.py")
    assert ran.returncode == 0, ran.stderr
    assert "wrote bill.json" in ran.stdout
    assert (folder / "bill.json").is_file()
    assert read_run(folder / "runs" / "a").run.ranks_seen == (0, 1)
    assert list((folder / "elsewhere").iterdir()) == []


def test_checks_look_at_the_first_module_called_in_training(folder: Path) -> None:
    ran = run(folder, 'shardtoll run --nproc 2 --checks "gradients, replicas,data" --out runs/c train.py')
    assert ran.returncode == 0, ran.stderr
    values = read_run(folder / "runs" / "c").frame("values")
    gradients = values[values["kind"] == "gradient"]
    assert len(gradients) == WORLD * STEPS * 4
    assert set(gradients["name"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert set(values["kind"]) == {"gradient", "parameter", "input"}
    assert "--checks" not in ran.stderr
    # Of the run beside it something else is asked too: a start of ranks takes seconds.
    unchecked = run(folder, "shardtoll run --nproc 2 train.py --exit 3")
    assert sorted(losses(ran.stdout)) == sorted(losses(unchecked.stdout))
    assert unchecked.returncode == 3, "the exit code of a rank passes through"


@pytest.mark.parametrize(("change", "says"), [
    (("model(torch.randn(4, 8))", "model[0](torch.randn(4, 8))"), "only Linear was"),
    (("model(torch.randn(4, 8))", "nn.functional.linear(torch.randn(4, 8), model[0].weight)"),
     "no module was called in training"),
])  # fmt: skip
def test_what_checks_cannot_see_is_said_in_one_line(folder: Path, change: tuple[str, str], says: str) -> None:
    script = folder / "train.py"
    script.write_text(script.read_text().replace(*change))
    ran = run(folder, "shardtoll run --checks gradients train.py")
    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stderr.splitlines() if "--checks" in line]
    assert says in line
    assert "give audit(model, checks=...) the model" in line


def test_it_starts_the_ranks_itself_and_prints_one_bill(folder: Path) -> None:
    printed = example(folder, 0, sys.executable).stdout
    assert len(losses(printed)) == WORLD * (STEPS + 1)
    # DDP rebuilds its buckets in the second step: the first three are surveyed.
    assert " ".join(printed.split()).count(f"{STEPS} steps: 3 surveyed (0-2), {STEPS - 3} watched") == 1
    assert printed.count("2 of 2 ranks seen") == 1


def test_the_command_under_torchrun_ends_after_its_steps(folder: Path) -> None:
    ran = example(folder, 2)
    assert "wrote bill.json" in ran.stdout
    report = Report.load(folder / "bill.json")
    assert sorted(set(report.steps["step"])) == [0, 1]
    assert len(losses(ran.stdout)) == WORLD * (STEPS + 1), "training went on"


def test_one_rank_without_a_group_prints_what_it_prints_alone(folder: Path) -> None:
    alone = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, timeout=120, cwd=folder, check=True
    )
    audited = run(folder, "shardtoll run --step-on torch.optim:SGD.step train.py")
    assert audited.returncode == 0, audited.stderr
    assert audited.stdout.startswith(alone.stdout)
    assert f"{STEPS} steps: 2 surveyed (0, 2), {STEPS - 2} watched" in " ".join(audited.stdout.split())
    assert audited.stderr == alone.stderr == ""


def test_the_launcher_says_nothing_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    (folder / "threads.py").write_text(THREADS)
    ran = run(folder, "shardtoll run --nproc 2 threads.py")
    assert ran.stdout.split() == ["1", "1"]
    assert (ran.returncode, ran.stderr) == (2, NO_STEP.format("threads.py"))
    killed = "import os, signal\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
    (folder / "killed.py").write_text(f"{killed}import time; time.sleep(60)")
    ran = run(folder, "shardtoll run --nproc 2 killed.py")
    assert (ran.returncode, ran.stderr) == (137, "shardtoll: rank 1 was ended by SIGKILL\n")
    (folder / "killed_later.py").write_text(
        "import os, signal, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.barrier()\n"
    )
    ran = run(folder, "shardtoll run --nproc 2 --out kept killed_later.py")
    own = [line for line in ran.stderr.splitlines() if "ended" in line]
    assert own == ["shardtoll: rank 1 was ended by SIGKILL; where: shardtoll hang kept"]


def test_a_mistake_of_all_ranks_is_told_once(folder: Path) -> None:
    ran = run(folder, "shardtoll run --nproc 2 --step-on nowhere:step train.py")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("shardtoll: --step-on nowhere:step cannot be found (No module named")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("out", "line"),
    [
        (
            "--out runs/a",
            "shardtoll: interrupted; the finished steps are in runs/a: shardtoll report runs/a\n",
        ),
        ("", "shardtoll: interrupted; no steps were kept: --out FOLDER keeps those that finish\n"),
    ],
)
def test_an_interrupt_is_told_in_one_line(folder: Path, out: str, line: str) -> None:
    script = (folder / "train.py").read_text()
    waits = "open(f'trained{dist.get_rank()}', 'w').close(); __import__('time').sleep(60)"
    (folder / "train.py").write_text(
        script.replace("    with torch.no_grad():", f"    {waits}\n    with torch.no_grad():")
    )
    words = shlex.split(f"run --nproc {WORLD} {out} train.py")
    with subprocess.Popen(
        [warm.python(), "-m", MODULES["shardtoll"], *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    ) as job:
        limit = time.monotonic() + 120
        while time.monotonic() < limit and not all(
            (folder / f"trained{rank}").exists() for rank in range(WORLD)
        ):
            assert job.poll() is None
            time.sleep(0.05)
        job.send_signal(signal.SIGINT)
        _, told = job.communicate(timeout=120)
    assert (job.returncode, told) == (130, line)
    if out:
        assert len(read_run(folder / "runs" / "a").tables["steps"]) == WORLD * STEPS


def test_an_interrupt_never_meets_the_launchers_heartbeat(folder: Path) -> None:
    (folder / "waits.py").write_text("import time\nopen('waiting', 'w').close()\ntime.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-c", BEATING], stderr=subprocess.PIPE, text=True, cwd=folder
    ) as job:
        limit = time.monotonic() + 120
        while time.monotonic() < limit and not (folder / "waiting").exists():
            assert job.poll() is None
            time.sleep(0.05)
        job.send_signal(signal.SIGINT)
        _, errors = job.communicate(timeout=120)
    # The rank's own traceback is whole; nothing else is written.
    assert (job.returncode, errors.splitlines()[-1]) == (130, "KeyboardInterrupt")
    assert "heartbeat" not in errors
    assert "ignored" not in errors


def test_a_script_for_ranks_that_were_not_started_is_told_how(folder: Path) -> None:
    (folder / "ddp.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    ran = run(folder, "shardtoll run ddp.py")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "shardtoll: ddp.py makes a process group, and RANK is not set: "
        "start ranks with --nproc N or torchrun\n"
    )
    # What a script makes of it itself stays the script's.
    alone = (
        "try:\n    dist.init_process_group('gloo')\n"
        "except ValueError as error:\n    raise KeyError(1) from error\n"
    )
    (folder / "ddp.py").write_text(f"import torch.distributed as dist\n{alone}")
    ran = run(folder, "shardtoll run ddp.py")
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (1, "KeyError: 1")


def test_an_exception_is_told_as_without_us(folder: Path) -> None:
    ran = run(folder, "shardtoll run train.py --fail")
    assert ran.returncode == 1
    first, where, *_, last = ran.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert re.fullmatch(r'  File "(.*/)?train\.py", line \d+, in <module>', where)
    assert ran.stderr.count("  File ") == 2, "<module> and main()"
    assert last == "ValueError: the data ran out"


def test_a_script_without_steps_is_told_what_to_do(folder: Path) -> None:
    (folder / "idle.py").write_text("print('nothing to train')\n")
    ran = run(folder, "shardtoll run idle.py")
    assert (ran.returncode, ran.stdout) == (2, "nothing to train\n")
    assert ran.stderr == NO_STEP.format("idle.py")
