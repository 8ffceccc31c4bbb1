"""Every benchmark is a documented program with `-o x.json`, and what it writes has one shape."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import warm
from tests.unit.analyzers.sweeps import straight, sweep_text

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SAMPLES = FOLDER.parent / "samples"
PROGRAMS = sorted(
    path
    for room in (FOLDER, FOLDER / "forecasts", FOLDER / "replays")
    for path in room.glob("*.py")
    # The others are parts of programs.
    if path.name != "harness.py"
    and not path.name.startswith(("synthetic_", "learn_priors", "memory_rows"))
    and path.stem not in ("advice_orders", "replay_medians", "replay_programs", "replay_ranks")
)

TRIVIAL = '''"""Counts to three."""
import sys
sys.path.insert(0, {folder!r})
from harness import Result, Spread, main

def measure(arguments):
    spread = Spread.of([1.0, 2.0, 4.0, arguments.last] if arguments.last else [3.0])
    figures = {{"median_ms": spread.median, "low_ms": spread.low, "high_ms": spread.high, "gpu_ms": None}}
    return Result(figures, {{"median_ms": 2.5, "gpu_ms": 1.0}})

def options(parser):
    parser.add_argument("--last", type=float, default=8.0)

main(measure, about=__doc__, options=options)
'''


def _run(*command: str | Path) -> str:
    done = subprocess.run([warm.python(), *command], capture_output=True, text=True, timeout=240)
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


def test_the_spread_of_one_repeat_is_that_repeat(tmp_path):
    program, out = tmp_path / "trivial.py", tmp_path / "x.json"
    program.write_text(TRIVIAL.format(folder=str(FOLDER)))
    _run(program, "-o", out, "--last", "0")
    assert json.loads(out.read_text())["figures"] == {
        "median_ms": 3.0, "low_ms": 3.0, "high_ms": 3.0, "gpu_ms": None,
    }  # fmt: skip


def test_the_harness_writes_nothing_without_being_asked(tmp_path):
    program = tmp_path / "trivial.py"
    program.write_text(TRIVIAL.format(folder=str(FOLDER)))
    _run(program)
    assert list(tmp_path.iterdir()) == [program]


def test_there_are_benchmarks():
    assert PROGRAMS


def _reached(tree: ast.AST) -> set[str]:
    """Return what the code reaches by attributes of `torch`, with all that leads there."""
    found = set()
    for node in ast.walk(tree):
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id == "torch":
            found |= set(_with_parents(".".join(["torch", *reversed(parts)])))
    return found


def _imported(tree: ast.AST) -> set[str]:
    """Return the modules that the code imports, and what it imports of them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for each in found for name in _with_parents(each)}


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def test_every_module_of_torch_that_a_program_reaches_is_there_after_its_own_imports():
    """The interpreter that runs them here has imported more than they do, and would hide a missing import."""
    code = "import json, sys, torch; print(json.dumps([*sys.modules]))"
    plain = set(json.loads(subprocess.check_output([sys.executable, "-c", code])))
    looked_at = 0
    for path in sorted((*FOLDER.rglob("*.py"), *SAMPLES.rglob("*.py"))):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        reached = _reached(tree)
        lacking = [name for name in reached - plain - _imported(tree) if _is_module(name)]
        assert not lacking, f"{path.name} does not import {lacking}"
        looked_at += len(reached)
    assert looked_at > 100
    assert _is_module("torch.nn.attention.flex_attention")


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


HELPS = """
import contextlib, io, json, os, runpy, sys
shown = {}
for program in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        sys.argv = [program, "--help"]
        sys.path[0] = os.path.dirname(program)  # as Python itself does for a program that it is given
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as leaving:
            assert not leaving.code, program
    shown[program] = text.getvalue()
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def helps(tmp_path_factory):
    """What each program says to --help, all asked in one process: most of each answer is importing torch."""
    asking = tmp_path_factory.mktemp("helps") / "asking.py"
    asking.write_text(HELPS)
    return json.loads(_run(asking, *PROGRAMS))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_every_program_says_what_it_measures_and_takes_o(program, helps):
    about = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")))
    assert about
    shown = helps[str(program)]
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
    # One case: what a fake group's gives is held above, by the same harness.
    sizes = ("--repeats", "2", "--block", "2", "--case", "gloo-fsdp2")
    _run(FOLDER / "check_cost.py", "-o", out, *sizes)
    figures = json.loads(out.read_text())["figures"]
    for check in ("gradients", "replicas", "data", "all"):
        for against in ("bare", "watch"):
            low, middle, high = (
                figures[f"gloo-fsdp2.{check}_over_{against}{part}"] for part in ("_q1", "", "_q3")
            )
            assert 0 < low <= middle <= high
    assert figures["gloo-fsdp2.survey_checks_over_survey"] > 0


COUNTS = """
import json, sys
sys.path.insert(0, {folder!r})
from overheads.counts import disagreeing, fold, missed

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


ACCURACY = """
import json, sys
sys.path.insert(0, {folder!r})
from accuracy.constants import Constants
from accuracy.cases import BOTH, COLLECTIVE, NODES, cases
from accuracy.peers import inductor, redistribute_cost
from shardtoll.analyzers.roofline import collective_cost
from shardtoll.analyzers.roofline.evaluate.sweep import Sweep, SweepPoint

hardware = "8xH100 SXM HGX, 8x CX-7 IB NDR400"
points = tuple(SweepPoint(1 << power, 1e6, 1e6) for power in (20, 22, 24))
sweeps = {{
    "near": Sweep(hardware, 1, 8, "all_reduce", points),
    "two": Sweep(hardware, 2, 16, "all_reduce", points),
    "four": Sweep(hardware, 4, 32, "all_reduce", points),
    "gather": Sweep(hardware, 2, 16, "all_gather", points),
    "other": Sweep("8xH100 SXM p5.48xlarge", 2, 16, "all_reduce", points),
}}
asked = []
def predict_of(name):
    def predict(fabric, op, size, at):
        asked.append((name, op, size, [len(curve.points) for curve in fabric.curves]))
        return None
    return predict
found = list(cases(sweeps, {{name: Constants(predict_of(name)) for name in sweeps}}))
kinds = {{case.name: case.kinds for case in found if "->" in case.name}}
wanted = {{"two -> four": NODES, "gather -> two": COLLECTIVE, "gather -> four": BOTH}}
GIB = 1 << 30
send = Sweep(hardware, 2, 16, "send", points)
print(json.dumps([
    sorted(kinds),
    [kind in kinds[pair] for pair, kind in wanted.items()],
    [entry[2:] for entry in asked if entry[0] == "other"],
    [redistribute_cost(sweeps[name], GIB) for name in ("near", "two", "gather")],
    [inductor(sweeps[name], GIB) for name in ("near", "two", "gather")],
    [redistribute_cost(send, GIB), inductor(send, GIB)],
]))
"""


def test_the_accuracy_cases_are_all_pairs_of_a_cluster_and_peers_answer_by_their_own_formulas(tmp_path):
    program = tmp_path / "accuracy.py"
    program.write_text(ACCURACY.format(folder=str(FOLDER)))
    pairs, kinds, asked, torch_ns, inductor_ns, send = json.loads(_run(program))
    own = ("near", "two", "four", "gather")
    # `near` and `two` differ in nodes; sweeps of another cluster pair with none.
    wanted = {f"{a} -> {b}" for a in own for b in own if a != b}
    assert set(pairs) == wanted
    assert kinds == [True, True, True]
    # Not fitted: three sizes and no curve. Calibrated: the middle size from the two others.
    assert asked == [[1 << 20, []], [1 << 22, []], [1 << 24, []], [1 << 22, [2]]]
    # DTensor: 6.6 us + hops x latency + GiB x hops / ranks / rate: 87.7 "GB/s" in a host, 0.22 of it between.
    near, far = 87.7, 87.7 * 0.22
    closed = [6.6 + 14 * 0.6 + 1e6 * 14 / 8 / near, 6.6 + 30 * 2.7 + 1e6 * 30 / 16 / far]
    closed.append(6.6 + 15 * 2.7 + 1e6 * 15 / 16 / far)
    if None not in torch_ns:
        assert torch_ns == pytest.approx([1e3 * value for value in closed])
    assert send[0] is None, "DTensor has no send"
    if None not in inductor_ns:
        # H100: 370 GB/s inside a host by inductor, 50 between; ring, Simple at this size: within its latency.
        assert inductor_ns[0] == pytest.approx(1.75 * (1 << 30) / 370, rel=0.1)
        assert inductor_ns[2] > 1.5 * (15 / 16) * (1 << 30) / 50 / 2


@pytest.mark.slow
def test_model_accuracy_prints_each_mode_with_its_aim(tmp_path):
    folder, out = tmp_path / "sweeps", tmp_path / "x.json"
    folder.mkdir()
    for nodes in (2, 4):
        text = sweep_text(straight(30 + 10 * nodes, 250), nodes=nodes, gpus=8 * nodes)
        (folder / f"n{nodes}.csv").write_text(text)
    (folder / "INDEX.csv").write_text("name\n")
    printed = _run(FOLDER / "model_accuracy.py", "--quick", "--sweeps", folder, "-o", out)
    written = json.loads(out.read_text())
    key = "as shipped: calibrated: every second size of the same sweep, the others scored, all"
    assert written["aims"][f"{key}: median"] == 0.03
    # Two sweeps of 21 sizes, 10 of each scored.
    assert written["figures"][f"{key}: points"] == 20
    assert 0 <= written["figures"][f"{key}: median"] <= written["figures"][f"{key}: p90"]
    assert "transferred: another node count, NVLink + IB/EFA (2 pairs)" in printed
    assert "not fitted: up to 4 nodes (2 sweeps)" in printed
    for words in ("redistribute_cost", "inductor", "in band", "noise"):
        assert words in printed
