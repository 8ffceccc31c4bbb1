"""`make gpu-rehearsal`: what a CUDA card is to run once runs here on the CPU, so that it fails on no typo."""

from __future__ import annotations

import csv
import json
import os
import select
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.live import warm

ROOT = Path(__file__).resolve().parents[2]
PLAN = ROOT / "benchmarks" / "gpu" / "run.py"
LIMIT_S = 280


def run(*arguments: str | Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, PLAN, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=ROOT,
        check=False,
    )


@pytest.mark.live
@pytest.mark.slow
def test_every_part_of_the_plan_runs_on_the_cpu_and_its_checks_hold(tmp_path):
    # Parts and their ranks are forked too; that each imports what it uses is a test of its own.
    done = run("--rehearse", "-o", tmp_path, python=warm.python())
    results = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert done.returncode == 0, done.stdout + json.dumps(results, indent=1)
    assert set(results) == {"card_tests", "audited", "overhead", "tables", "models", "traces", "foreseen"}
    for result in results.values():
        assert result["finished"]
        assert result["checks"]
        assert result["machine"]["torch"]
    names = [check["name"] for check in results["audited"]["checks"]]
    for program in (
        "ddp, gloo, 1 ranks",
        "fsdp2, gloo, 1 ranks",
        "ddp, gloo, 2 ranks",
        "fsdp2, gloo, 2 ranks",
    ):
        assert any(name.startswith(program) for name in names)
    with (tmp_path / "tables.csv").open(encoding="utf-8") as file:
        kinds = {row["kind"] for row in csv.DictReader(file)}
    assert {"launch", "memory copy", "attention_fwd_causal", "attention_bwd_causal", "gemm"} <= kinds
    with (tmp_path / "models.csv").open(encoding="utf-8") as file:
        assert [row["variant"] for row in csv.DictReader(file)] == ["plain", "recompute", "compile"]
    with (tmp_path / "dry_run.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["variant"] for row in rows] == ["plain", "recompute", "compile"]
    assert all(float(row["foreseen_step_s"]) > 0 for row in rows if row["variant"] != "compile")
    with tarfile.open(tmp_path / "traces.tar") as tar:
        assert len(tar.getnames()) == 3
    assert len((tmp_path / "summary.md").read_text().splitlines()) == 11
    # As many as one may bring home from a machine that gives back eight.
    assert len(list(tmp_path.glob("*.log"))) == 0


ALONE = """
import os, sys, traceback
import torch

for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        # Each in a copy of its own, so that what another part has imported is not there.
        try:
            __import__(f"gpu.{name}")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"gpu.{name} cannot be imported by itself")
"""


@pytest.mark.live
def test_parts_import_what_they_use():
    names = "card_tests", "audited", "overhead", "tables", "models", "traces", "foreseen"
    paths = os.pathsep.join(str(ROOT / folder) for folder in (".typing", "benchmarks", ""))
    subprocess.run(
        [sys.executable, "-c", ALONE, *names],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
        check=True,
        timeout=120,
    )


LEAVES_ONE = """
import os, time
child = os.fork()
if child:
    print(child, flush=True)
    os._exit(0)
time.sleep(600)
"""


def test_ranks_that_a_part_leaves_behind_end_with_it(monkeypatch):
    monkeypatch.syspath_prepend(PLAN.parent)
    import run as plan

    part = subprocess.Popen(
        [sys.executable, "-IS", "-c", LEAVES_ONE], stdout=subprocess.PIPE, start_new_session=True
    )
    assert part.stdout is not None
    left = int(part.stdout.readline())
    assert part.wait(60) == 0
    os.kill(left, 0)
    plan._end(part)
    # Its output ends with the last process that holds it.
    with part.stdout:
        ended = bool(select.select([part.stdout], [], [], 30)[0])
    if not ended:
        os.kill(left, signal.SIGKILL)
    assert ended


def test_a_part_that_comes_too_late_leaves_what_it_had_and_is_no_success(tmp_path):
    sys.path.insert(0, str(PLAN.parent))
    try:
        import run as plan
    finally:
        sys.path.remove(str(PLAN.parent))
    result = plan.run_part(plan.Part("tables", 0.2, "too little time"), tmp_path, "cpu")
    assert not result["ok"]
    assert result["ended"] == "stopped after 0.2 s"
    assert json.loads((tmp_path / "tables.json").read_text())["ok"] is False
    assert "stopped after 0.2 s" in plan.line(result)


def test_a_part_that_this_python_cannot_run_is_left_out_and_the_others_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(PLAN.parent)
    import run as plan

    one = plan.Part("tables", 1, "", ("json", "no_such_module"))
    result = plan._result(one, tmp_path, 0.0, rehearse=False)
    assert result["ended"] == "this Python lacks no_such_module: pip install no_such_module"
    assert json.loads((tmp_path / "tables.json").read_text()) == result
    late = plan._result(plan.Part("tables", 1, ""), tmp_path, 0.0, rehearse=False)
    assert late["ended"] == "the 520 s of all parts were over"
    assert "lacks no_such_module" in plan.line(result)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing", "--rehearse"), "no part is named nothing: name some of card_tests, audited"),
        (("tables",), "torch sees no CUDA card here: run it where there is one, or rehearse it"),
    ],
)
def test_mistakes_end_in_one_line(arguments, said, tmp_path):
    done = run(*arguments, "-o", tmp_path)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
