"""Every benchmark is a documented program with `-o x.json`, and what it writes has one shape."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
PROGRAMS = sorted(
    path
    for path in FOLDER.glob("*.py")
    # The others are parts of programs.
    if path.name != "harness.py" and not path.name.startswith(("synthetic_", "overhead_", "accuracy_"))
)

TRIVIAL = '''"""Counts to three."""
import sys
sys.path.insert(0, {folder!r})
from harness import Result, Spread, main

def measure(arguments):
    spread = Spread.of([1.0, 2.0, 4.0, arguments.last])
    figures = {{"median_ms": spread.median, "low_ms": spread.low, "high_ms": spread.high, "gpu_ms": None}}
    return Result(figures, {{"median_ms": 2.5, "gpu_ms": 1.0}})

def options(parser):
    parser.add_argument("--last", type=float, default=8.0)

main(measure, about=__doc__, options=options)
'''


def _run(*command: str | Path) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_harness_writes_figures_aims_and_machine(tmp_path):
    program, out = tmp_path / "trivial.py", tmp_path / "deep" / "x.json"
    program.write_text(TRIVIAL.format(folder=str(FOLDER)))
    printed = _run(program, "-o", out, "--last", "16")
    written = json.loads(out.read_text())
    assert set(written) == {"figures", "aims", "machine"}
    # Quartiles by linear interpolation between the sorted samples 1, 2, 4, 16.
    assert written["figures"] == {"median_ms": 3.0, "low_ms": 1.75, "high_ms": 7.0, "gpu_ms": None}
    assert written["aims"] == {"median_ms": 2.5, "gpu_ms": 1.0}
    assert {"cpu", "cores", "python", "torch", "date"} <= set(written["machine"])
    assert "median_ms: 3 (aim 2.5)" in printed
    assert "gpu_ms: not measured here (aim 1)" in printed
    assert "Counts to three." in _run(program, "--help")


def test_the_harness_writes_nothing_without_being_asked(tmp_path):
    program = tmp_path / "trivial.py"
    program.write_text(TRIVIAL.format(folder=str(FOLDER)))
    _run(program)
    assert list(tmp_path.iterdir()) == [program]


def test_there_are_benchmarks():
    assert PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_every_program_says_what_it_measures_and_takes_o(program):
    about = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")))
    assert about
    shown = _run(program, "--help")
    assert "-o" in shown.split()
    assert about.splitlines()[0] in shown


@pytest.mark.live
@pytest.mark.slow
def test_the_overhead_benchmark_measures_every_figure_it_names(tmp_path):
    out = tmp_path / "x.json"
    cases = ("fake-implicit", "gloo-mixed")
    sizes = [word for name in ("repeats", "schedule-repeats") for word in (f"--{name}", "2")]
    sizes += ["--block", "2", "--schedule-steps", "3"]
    chosen = [word for case in cases for word in ("--case", case)]
    printed = _run(FOLDER / "overhead.py", "-o", out, *sizes, *chosen)
    figures, aims = (json.loads(out.read_text())[part] for part in ("figures", "aims"))
    assert set(aims) <= set(figures)
    assert figures["fake-implicit.bare_ms"] > 0
    for tool in ("survey", "survey_first", "commdebug", "profiler", "dispatch_mode", "wrappers"):
        assert figures[f"fake-implicit.{tool}_ratio"] > 0
        low, middle, high = (figures[f"fake-implicit.{tool}_added_ms{part}"] for part in ("_q1", "", "_q3"))
        assert low <= middle <= high
    assert figures["fake-implicit.sequence_reads_ratio"] is None, "the fake group counts nothing"
    assert aims["fake-implicit.survey_added_over_commdebug"] == 0.5
    for case in cases:
        assert figures[f"{case}.counts_differing"] == 0, printed
    assert figures["fake-implicit.missed_by_commdebug"] == 0, printed
    # One send, one receive, one barrier.
    assert figures["gloo-mixed.missed_by_commdebug"] == 3, printed
    assert "'send': 1" in printed


@pytest.mark.live
@pytest.mark.slow
def test_the_cost_of_each_check_is_measured_against_a_step_without(tmp_path):
    out = tmp_path / "x.json"
    sizes = ("--repeats", "2", "--block", "2", "--case", "fake-implicit", "--case", "gloo-fsdp2")
    _run(FOLDER / "check_cost.py", "-o", out, *sizes)
    figures = json.loads(out.read_text())["figures"]
    for case in ("fake-implicit", "gloo-fsdp2"):
        for check in ("gradients", "replicas", "data", "all"):
            for against in ("bare", "watch"):
                low, middle, high = (
                    figures[f"{case}.{check}_over_{against}{part}"] for part in ("_q1", "", "_q3")
                )
                assert 0 < low <= middle <= high
        assert figures[f"{case}.survey_checks_over_survey"] > 0


COUNTS = """
import json, sys
sys.path.insert(0, {folder!r})
from overhead_counts import disagreeing, fold, missed

seen = {{"c10d.allreduce_": 2, "c10d_functional.all_reduce": 1, "c10d._allgather_base_": 4, "c10d.new_": 1}}
same = {{"all_reduce": 3, "all_gather": 4, "new_": 1, "barrier": 2}}
theirs = fold(seen)
print(json.dumps([theirs, disagreeing(theirs, same), missed(theirs, same)]))
print(json.dumps(disagreeing(theirs, {{**same, "all_gather": 5}})))
print(json.dumps(disagreeing(theirs, {{"all_reduce": 3, "all_gather": 4}})))
"""


def test_counts_that_differ_from_commdebugmode_are_found(tmp_path):
    program = tmp_path / "counts.py"
    program.write_text(COUNTS.format(folder=str(FOLDER)))
    found = [json.loads(line) for line in _run(program).splitlines()]
    assert found[0] == [{"all_reduce": 3, "all_gather": 4, "new_": 1}, {}, {"barrier": 2}]
    assert found[1] == {"all_gather": [4, 5]}
    assert found[2] == {"new_": [1, 0]}, "an operator with no name of ours differs, it is not dropped"
