"""Help imports nothing heavy, and every example in it works. (How quick it is: benchmarks/startup.py.)"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from shardtoll.cli import COMMANDS, budget, fabrics, forecast
from tests import nsys_exports, small_traces
from tests.flights import write_flight
from tests.live import warm
from tests.unit.analyzers.sweeps import straight, sweep_text
from tests.unit.cli.conftest import write_run
from tests.unit.cli.subcommands.test_forecast_commands import HEAD as ROWS_HEAD
from tests.unit.cli.subcommands.test_forecast_commands import ROWS
from tests.unit.cli.test_advise_command import PLAN
from tests.unit.cli.test_calibrate_command import points
from tests.unit.profiler.calibrate.test_nccl_tests import POINTS, printed

HEAVY = {"torch", "plotly", "pandas", "numpy", "hta", "pyarrow", "rich"}
HEAVY |= {"shardtoll.ledger", "shardtoll.dashboards", "shardtoll.analyzers", "shardtoll.profiler"}
RUN = "import sys; from shardtoll.cli import main; sys.argv = ['shardtoll', *sys.argv[1:]]\n"


def in_process(*arguments: str, after: str = "") -> subprocess.CompletedProcess[str]:
    program = f"{RUN}try:\n    main()\nfinally:\n    {after or 'pass'}"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60
    )


UNDER = [
    f"{group.__name__.rpartition('.')[2]} {name}"
    for group in (fabrics, budget, forecast)
    for name in group.SUBCOMMANDS
]


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], *([*name.split(), "--help"] for name in (*COMMANDS, *UNDER))],
)
def test_help_imports_nothing_heavy(arguments: list[str]):
    done = in_process(*arguments, after="print(*sys.modules, file=sys.stderr)")
    assert done.returncode == 0, done.stderr
    assert not HEAVY & set(done.stderr.split())


def test_help_lists_every_command():
    listed = in_process("--help").stdout.split("Commands:")[1]
    assert re.findall(r"^  (\w+) ", listed, flags=re.MULTILINE) == list(COMMANDS)


def test_version():
    assert in_process("--version").stdout == f"shardtoll {version('shardtoll')}\n"


def examples(command: str) -> list[str]:
    text = in_process(*command.split(), "--help").stdout
    return [line.strip() for line in text.splitlines() if line.strip().startswith(f"shardtoll {command}")]


# The others train, serve or need files: tests/live/test_demo.py, test_run_script.py, test_dryrun_command.py,
# test_serve_command.py, and test_fabrics_eval.py.
@pytest.mark.parametrize(
    "command",
    [
        *(name for name in COMMANDS if name not in ("demo", "run", "serve", "dryrun")),
        "fabrics list",
        "fabrics show",
        "budget init",
        "forecast run",
        "forecast eval",
    ],
)
def test_every_example_of_the_help_runs(
    command: str, shardtoll, run_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(run_folder.parent.parent)
    write_run(Path("runs/b"), mended=True)
    small_traces.write_job(Path("traces"))
    for folder in ("runs/a", "node0/runs/a", "node1/runs/a"):
        for rank in range(2) if command == "hang" else ():
            write_flight(Path(folder), rank)
    nsys_exports.write_rank(Path("nsys"))
    Path("plan.toml").write_text(PLAN)
    Path("rows.csv").write_text(f"{ROWS_HEAD}{ROWS}")
    Path("sweep.csv").write_text(sweep_text(straight(40, 300)))
    for test in ("all_reduce", "all_gather"):
        Path(f"{test}.txt").write_text(printed(test, POINTS))
    Path("points.json").write_text(json.dumps(points()))
    if command == "check":
        Path("budget.toml").write_text("max_collectives = 6")
        shardtoll("report", "runs/a", "-o", "bill.json")
    found = examples(command)
    if command == "advise":
        # A run with operators and a script: test_advise_runs.py.
        found = [each for each in found if "runs/a" not in each and ".py" not in each]
    if command == "calibrate":
        # Its ranks import torch.
        monkeypatch.setattr(sys, "executable", warm.python())
    assert found, f"shardtoll {command} --help has no example"
    for example in found:
        ran = shardtoll(*shlex.split(example)[1:])
        assert (ran.code, ran.err) == (0, ""), example
        assert ran.out


def test_usage_errors_exit_2(shardtoll):
    for arguments in (
        ["nonsense"],
        ["report"],
        ["report", "x", "--nonsense"],
        ["report", "x", "--width", "a"],
        [],
    ):
        ran = shardtoll(*arguments)
        assert ran.code == 2
        assert "Traceback" not in ran.err
