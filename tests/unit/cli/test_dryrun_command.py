"""`shardtoll dryrun`: its examples, what it keeps, and mistakes told in one line."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shardtoll.cli.jobs import dry_job
from shardtoll.ledger import read_run
from shardtoll.profiler.dryrun.device import values
from shardtoll.profiler.dryrun.idle import NOTHING
from tests.unit.cli.test_help import examples

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

TRAIN = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for number in range(100):
    loss = model(torch.randn(8, 64).to("cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", number, loss.item(), loss.device)
"""
"""As written for GPUs; nothing in it knows of us."""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.mark.usefixtures("script")
def test_every_example_of_the_help_runs(shardtoll: Callable[..., Any]) -> None:
    found = examples("dryrun")
    assert len(found) == 3
    for example in found:
        ran = shardtoll(*shlex.split(example)[1:])
        assert ran.code == 0, ran.err
        assert "A step takes" in ran.out, example
        # What the script prints is no result: the first steps ran, the hundredth did not.
        assert "step 0 0.0 cuda:0" in ran.err, example
        assert "step 99" not in ran.err, example
    assert Path("step.html").stat().st_size > 10_000


@pytest.mark.usefixtures("script")
def test_without_world_it_is_said_that_one_rank_was_priced(shardtoll: Callable[..., Any]) -> None:
    said = "Priced for one rank, which sends nothing to others. For a job of N GPUs: --world N\n"
    assert shardtoll("dryrun", "train.py").out.endswith(said)
    assert "Priced for" not in shardtoll("dryrun", "--world", 1, "train.py").out
    as_json = shardtoll("dryrun", "--json", "train.py")
    assert said in as_json.err
    assert json.loads(as_json.out)["world_size"] == 1


def test_a_script_with_an_audit_of_its_own_runs_dry_and_its_run_stays(
    shardtoll: Callable[..., Any], script: Path
) -> None:
    """As README has people write it: the same file is audited on CPUs and then run dry."""
    training = TRAIN.replace("for number in range(100):\n", "def train(number):\n")
    script.write_text(f"""{training}
from shardtoll.profiler import audit

with audit(model, out="runs/a", checks=("gradients",)) as session:
    for number in range(100):
        with session.step():
            train(number)
""")
    kept = script.parent / "runs" / "a" / "kept.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("of a measured run")
    ran = shardtoll("dryrun", "--world", 4, "train.py")
    assert ran.code == 0, ran.err
    assert "A step takes" in ran.out
    assert "replaced" not in ran.err
    assert [each.name for each in kept.parent.iterdir()] == ["kept.txt"]


def test_a_short_script_that_shows_and_writes_its_own_report_runs_dry(
    shardtoll: Callable[..., Any], script: Path
) -> None:
    training = TRAIN.replace("for number in range(100):\n", "def train(number):\n")
    script.write_text(f"""{training}
from pathlib import Path
from shardtoll.profiler import audit

with audit(model, out="runs/a") as session:
    with session.step():
        train(0)
report = session.report()
report.show()
Path("own.json").write_text(report.to_json())
Path("headline.txt").write_text(report.verdict)
""")
    ran = shardtoll("dryrun", "--world", 4, "train.py")
    assert ran.code == 0, ran.err
    assert "A step takes" in ran.out
    assert (script.parent / "headline.txt").read_text() == NOTHING
    assert json.loads((script.parent / "own.json").read_text())["findings"] == []
    other = shardtoll("dryrun", "--world", 4, "--rank", 1, "train.py")
    assert "'NoneType' object has no attribute 'show'" in other.err, "no report on other ranks, as ever"


@pytest.mark.usefixtures("script")
def test_a_run_that_is_kept_has_priced_steps(shardtoll: Callable[..., Any]) -> None:
    made = shardtoll(
        "dryrun", "--world", 16, "--rank", 3, "--steps", 2, "--out", "runs/dry", "--json", "train.py"
    )
    assert made.code == 0, made.err
    answer = json.loads(made.out)
    assert (answer["world_size"], answer["rank"], answer["gpu"]) == (16, 3, "h100-sxm")
    band = answer["step_ns"]
    assert 0 < band["low"] < band["expected"] < band["high"]
    memory = answer["memory"]
    assert sum(memory["at_peak"].values()) == memory["allocated_bytes"]
    # cuBLAS's workspace, and what the allocator rounds up.
    assert 64 << 20 <= memory["at_peak"]["allocator"] < (64 << 20) + 64 * 512
    ledger = read_run(Path("runs/dry"))
    assert (ledger.run.source, ledger.run.gpu, ledger.run.fabric) == ("dry", "h100-sxm", "h100x8-ib400")
    steps = ledger.tables["steps"].to_pylist()
    assert [step["step"] for step in steps] == [0, 1]
    assert abs(steps[-1]["duration_ns"] - band["expected"]) <= 4
    mine = [row for row in ledger.tables["collectives"].to_pylist() if row["step"] == 1]
    elements = 64 * 256 + 256 + 256 * 64 + 64
    assert sum(row["message_bytes"] for row in mine) == 4 * elements
    assert sum(row["exposed_ns"] for row in mine) == steps[-1]["exposed_comm_ns"]
    flops = sum(row["flops"] for row in ledger.tables["dry_ops"].to_pylist() if row["step"] == 1)
    # Two matmuls forward; backward two of the second layer and one of the first, whose input needs none.
    assert flops == 5 * 2 * 8 * 64 * 256
    shown = shardtoll("report", "runs/dry", "--width", 200)
    assert shown.code == 0, shown.err
    verdict, run_line = shown.out.splitlines()[:2]
    # Kernels so small wait for their host.
    assert verdict.startswith("Idle time costs most: rank 3's device is idle for ")
    assert run_line == "forecast of rank 3 of 16 · nothing measured · H100 · 2 steps · fabric h100x8-ib400"
    assert ledger.run.ranks_missing == ()
    pages = shardtoll("report", "runs/dry", "--all", "-o", "dry.md", "-o", "dry.html")
    assert pages.code == 0, pages.err
    # In the page the fabric's name is an input's value too.
    for text in (shown.out, pages.out, Path("dry.md").read_text(), Path("dry.html").read_text()):
        assert "forecast of rank 3 of 16 · nothing measured" in text
        assert "left no records" not in text
        assert "1 of 16 ranks" not in text
    for same in ((), ("--fabric", "h100x8-ib400"), ("--gpu", "h100-sxm")):
        again = json.loads(shardtoll("forecast", "runs/dry", "--json", *same).out)
        assert again["weak"][0]["step_ns"] == pytest.approx(band)
    scaled = shardtoll("forecast", "runs/dry", "--world", 32, "-o", "scaled.md", "-o", "scaled.html")
    assert scaled.code == 0, scaled.err
    assert "forecast on 16: " in Path("scaled.md").read_text()
    assert "measured" not in scaled.out + Path("scaled.md").read_text()
    assert "the mark what was forecast." in Path("scaled.html").read_text()
    assert shardtoll("compare", "runs/dry", "runs/dry").code == 0
    Path("budget.toml").write_text("max_collectives = 0")
    assert shardtoll("check", "runs/dry", "--budget", "budget.toml").code == 1


def for_cpus() -> str:
    text = TRAIN.replace('"nccl"', '"gloo"').replace(".cuda())", ")").replace('.to("cuda")', "")
    return re.sub("torch.cuda.set_device.*", "", text)


def test_a_script_written_for_cpus_is_refused_in_one_line(
    shardtoll: Callable[..., Any], script: Path
) -> None:
    script.write_text(for_cpus())
    made = shardtoll("dryrun", "--world", 64, "train.py")
    assert (made.code, made.out) == (2, "")
    line = made.err.splitlines()[-1]
    assert len(line) <= 300
    assert line.startswith("shardtoll: train.py does nothing on a GPU in the recorded step: put the model")
    assert "torch.cuda.is_available()" in line


def test_a_script_that_chooses_its_device_runs_on_the_gpu(
    shardtoll: Callable[..., Any], script: Path
) -> None:
    text = for_cpus().replace("nn.Linear(256, 64))", "nn.Linear(256, 64)).to(device)")
    text = text.replace("torch.randn(8, 64)", "torch.randn(8, 64).to(device)")
    script.write_text(
        text.replace("model =", 'device = "cuda" if torch.cuda.is_available() else "cpu"\nmodel =')
    )
    made = shardtoll("dryrun", "--world", 64, "--json", "train.py")
    assert made.code == 0, made.err
    script.write_text(TRAIN)
    on_gpu = shardtoll("dryrun", "--world", 64, "--json", "train.py")
    assert json.loads(made.out)["memory"]["at_peak"] == json.loads(on_gpu.out)["memory"]["at_peak"]


def test_a_host_module_that_runs_before_training_is_not_on_the_gpu(
    shardtoll: Callable[..., Any], script: Path
) -> None:
    script.write_text(
        TRAIN.replace("optimizer =", "seen = nn.Linear(64, 1 << 20)(torch.zeros(1, 64))\noptimizer =")
        .replace("model = DDP(", "inner = ")
        .replace(".cuda())", "\ninner(torch.zeros(1, 64))\nmodel = DDP(inner.cuda())")
    )
    made = shardtoll("dryrun", "--world", 64, "--json", "train.py")
    assert made.code == 0, made.err
    script.write_text(TRAIN)
    plain = json.loads(shardtoll("dryrun", "--world", 64, "--json", "train.py").out)
    answer = json.loads(made.out)
    assert answer["memory"]["at_peak"] == plain["memory"]["at_peak"]
    assert answer["step_ns"] == plain["step_ns"]


GPU_FILE = """
[mine]
title = "Mine"
memory_bytes = 64e9
memory_gbps = 1500
peak_tflops = { bfloat16 = 400, float32 = 40 }
"""


@pytest.mark.usefixtures("script")
def test_a_kept_run_on_a_machine_of_files_is_read_without_them(shardtoll: Callable[..., Any]) -> None:
    fabric, gpu = Path("net.toml"), Path("card.toml")
    fabric.write_text('extends = "h100x8-ib400"\nname = "my-net"\n[inter]\nrank_gbps = 5\n')
    gpu.write_text(GPU_FILE)
    machine = ("--gpu", gpu, "--fabric", fabric)
    made = shardtoll(
        "dryrun",
        "--world",
        16,
        "--steps",
        2,
        *machine,
        "--out",
        "kept",
        "-o",
        "made.json",
        "--json",
        "train.py",
    )
    assert made.code == 0, made.err
    answer = json.loads(made.out)
    assert (answer["gpu"], answer["fabric"]) == ("mine", "my-net")
    assert answer["memory"]["capacity_bytes"] == 64_000_000_000

    def forecast(*options: object) -> Any:
        ran = shardtoll("forecast", "kept", "--no-cache", "--json", *options)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    # The files may be gone, or hold another machine by now.
    there = forecast(*machine)
    fabric.write_text('extends = "loopback-gloo"\nname = "my-net"\n')
    gpu.unlink()
    gone = forecast()
    assert gone["weak"] == there["weak"]
    assert gone["weak"][0]["step_ns"] == pytest.approx(answer["step_ns"], rel=1e-4)
    assert (gone["gpu"]["from"], gone["fabric"]["from"]) == ("mine", "my-net")
    assert not any("is a file" in note for note in gone["notes"])
    ran = shardtoll("report", "kept", "--no-cache", "-o", "kept.json")
    assert ran.code == 0, ran.err
    reports = [json.loads(Path(name).read_text()) for name in ("made.json", "kept.json")]
    floors = [[row["floor_ns"] for row in report["collectives"]] for report in reports]
    assert floors[0] == floors[1]
    assert None not in floors[0]
    ran = shardtoll("whatif", "kept", "--network", "x2", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["before"]["step_ns"] == pytest.approx(answer["step_ns"]["expected"], rel=1e-4)


@pytest.mark.usefixtures("script")
def test_a_kept_run_of_an_older_version_says_what_it_lacks(shardtoll: Callable[..., Any]) -> None:
    made = shardtoll("dryrun", "--world", 16, "--steps", 2, "--out", "kept", "--json", "train.py")
    assert made.code == 0, made.err
    expected = json.loads(made.out)["step_ns"]["expected"]
    head = Path("kept/run.rank00000.json")
    facts = head.read_text()
    for kind, name, was in (("fabric", "mine.toml", "h100x8-ib400"), ("GPU", "my-gpu.toml", "h100-sxm")):
        head.write_text(facts.replace(f'"{was}"', f'"{name}"'))
        ran = shardtoll("forecast", "kept", "--no-cache", "--json")
        assert ran.code == 0, ran.err
        answer = json.loads(ran.out)
        words = f"the dry run's {kind} '{name}' is a file, which the run does not keep. Its step is the"
        assert answer["notes"][0].startswith(words)
        assert answer["weak"][0]["step_ns"]["expected"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.usefixtures("script")
def test_shares_costs_and_reserved_memory_say_what_they_are(shardtoll: Callable[..., Any]) -> None:
    made = shardtoll("dryrun", "--world", 64, "--price", "2.5", "--width", 200, "train.py")
    assert made.code == 0, made.err
    assert re.search(r"MFU +\d\.\d % \(", made.out)
    assert re.search(r"cost per step .* in the currency of --price", made.out)
    assert re.search(r"reserved has \d+ MB outside the allocator", made.out)


def test_a_script_without_work_on_the_gpu_ends_in_one_line(
    shardtoll: Callable[..., Any], script: Path
) -> None:
    script.write_text(
        "import torch\n"
        "weight = torch.ones(16, requires_grad=True)\n"
        "sgd = torch.optim.SGD([weight], lr=0.1)\n"
        "for _ in range(3):\n"
        "    weight.square().mean().backward()\n"
        "    sgd.step()\n"
    )
    made = shardtoll("dryrun", "train.py")
    assert made.code == 2
    (line,) = (line for line in made.err.splitlines() if not line.startswith("["))
    assert "train.py" in line
    assert "in the recorded step: put the model and its batches on" in line


@pytest.mark.usefixtures("script")
def test_memory_is_listed_by_module_and_line_and_tokens_are_asked_for(shardtoll: Callable[..., Any]) -> None:
    made = shardtoll("dryrun", "--world", 64, "--width", 200, "train.py")
    assert made.code == 0, made.err
    assert "unknown, as no embedding was looked up: give --tokens" in made.out
    (modules,) = re.findall("by module: (.*)", made.out)
    (lines,) = re.findall("by line: (.*)", made.out)
    assert {"0", "2"} <= {part.split()[0] for part in modules.split(", ")}
    assert "unknown" not in modules + lines
    with_tokens = shardtoll("dryrun", "--world", 64, "--tokens", 512, "train.py")
    assert "--tokens" not in with_tokens.out
    assert "tokens/s/GPU" in with_tokens.out


@pytest.mark.usefixtures("script")
def test_it_leaves_nothing_behind(shardtoll: Callable[..., Any]) -> None:
    names = ("is_available", "device_count", "Stream", "Event", "synchronize", "memory_allocated")
    before = [getattr(torch.cuda, name) for name in names]
    others = torch.device, torch.Tensor.to, torch.nn.Module._apply, torch.save, torch.distributed.Work.wait
    assert shardtoll("dryrun", "train.py").code == 0
    assert [getattr(torch.cuda, name) for name in names] == before
    assert others == (
        *(torch.device, torch.Tensor.to, torch.nn.Module._apply, torch.save, torch.distributed.Work.wait),
    )
    assert torch.ones(2).device.type == "cpu"
    assert torch.ones(2).sum().item() == 2.0
    assert not torch.distributed.is_initialized()


GUARD = """    if not torch.isfinite(loss): sys.exit(1)
    if torch.isnan(loss).any() or (loss.isinf() | loss.isnan()).item() or not loss.isfinite().all().cpu():
        sys.exit(2)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
"""


@pytest.mark.parametrize("options", [[], ["--item", "1"], ["--item", "0"]])
def test_nothing_is_ever_nan_whatever_the_policy(
    options: list[str], shardtoll: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("guarded.py").write_text(TRAIN.replace("    optimizer.step()\n", GUARD))
    ran = shardtoll("dryrun", *options, "guarded.py")
    assert ran.code == 0, ran.err


def test_the_policy_decides_conditions_on_values(
    shardtoll: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = "    if not loss < 5: sys.exit(3)\n    optimizer.step()\n"
    Path("waits.py").write_text(TRAIN.replace("    optimizer.step()\n", step))
    said = shardtoll("dryrun", "waits.py").err
    assert "waits.py exited before an optimizer step with 3: its own output says why" in said
    assert said.endswith("; --item answers for values that no dry run has\n")
    assert shardtoll("dryrun", "--item", 1, "waits.py").code == 0


def test_a_loop_that_waits_for_a_value_ends_in_one_line(
    shardtoll: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(values, "_MOST_ANSWERS", 20)
    loop = "import itertools\nfor number in itertools.count():"
    step = """    try:
        if not loss < 5: continue
    except Exception:
        continue
    optimizer.step()
"""
    text = TRAIN.replace("for number in range(100):", loop).replace("    optimizer.step()\n", step)
    Path("waits.py").write_text(text)
    ran = shardtoll("dryrun", "waits.py")
    assert (ran.code, ran.out) == (2, "")
    said = [line for line in ran.err.splitlines() if line.startswith("shardtoll: ")]
    assert len(said) == 1
    wanted = r"waits\.py:16.*bool\(\) was answered in 20 forwards without an optimizer step"
    assert re.search(wanted, said[0]), said


def test_a_script_that_goes_on_without_a_step_is_not_silent(
    shardtoll: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dry_job, "_REMIND_S", 0.2)
    Path("reads.py").write_text("import time\ntime.sleep(0.7)\n" + TRAIN)
    ran = shardtoll("dryrun", "--world", 8, "--steps", 3, "reads.py")
    assert ran.code == 0
    wanted = r"\[ *[0-9.]+ s\] Ctrl-C ends it: waits for 4 optimizer steps of reads\.py"
    assert [line for line in ran.err.splitlines() if re.fullmatch(wanted, line)]
    assert not [thread for thread in threading.enumerate() if "remind" in thread.name]


MISTAKES = {
    "a script that never steps": (
        "print('hello')",
        [],
        r"bad.py made no optimizer step; a dry run needs 2: have it train: only calls of a torch optimizer's",
    ),
    "a script that exits with a number": (
        "import sys; sys.exit(3)",
        [],
        r"bad.py exited before an optimizer step with 3: its own output says why; [^;]* are its own$",
    ),
    "a script that exits without one": (
        "exit()",
        [],
        r"bad.py exited before an optimizer step: its own output",
    ),
    "a script that exits with a sentence": (
        "import sys; sys.exit('no data in ./data:\\nrun prepare.py')",
        [],
        r"bad.py exited before an optimizer step: no data in ./data: run prepare.py: options after",
    ),
    "a script that fails after one step": (
        TRAIN.replace("    optimizer.step()", "    optimizer.step(); import sys; sys.exit(1)"),
        [],
        r"bad.py made 1 optimizer step and exited with 1; a dry run needs 2: have it train for more steps",
    ),
    "a script that is written for another number of ranks": (
        TRAIN.replace('("nccl")', '("nccl", rank=0, world_size=4)'),
        ["--world", "8"],
        r"bad.py:7: ValueError: init_process_group\(world_size=4\), but --world is 8",
    ),
    "a script that fails": (TRAIN.replace("nn.ReLU()", "nn.Linear(3, 3)"), [], r"bad.py:12: RuntimeError"),
    "a world that the mesh does not divide": (
        TRAIN.replace(
            "torch.cuda.set_device",
            "dist.device_mesh.init_device_mesh('cuda', (4, 5))\ntorch.cuda.set_device",
        ),
        ["--world", "16"],
        r"bad.py:8: ",
    ),
    "a pipeline that is cut by torch.export": (
        TRAIN.replace("optimizer =", "torch.export.export(model, (torch.ones(8, 64).cuda(),))\noptimizer ="),
        [],
        r"bad.py:10: NotImplementedError: torch.export traces on a GPU",
    ),
    "a GPU that does not exist": (TRAIN, ["--gpu", "h1000"], r"no GPU named 'h1000'.*h100-sxm"),
    "a fabric that does not exist": (TRAIN, ["--fabric", "string-and-cans"], r"string-and-cans"),
    "a rank outside the job": (TRAIN, ["--world", "4", "--rank", "4"], r"--rank 4 in a job of 4"),
    "a price in no currency": (TRAIN, ["--price", "cheap"], r"--price 'cheap'"),
    "a price of 401 digits": (TRAIN, ["--price", "9" * 401, "--json"], r"--price '999999.*below 10 million"),
    "a policy that is none": (TRAIN, ["--item", "often"], r"--item 'often'"),
    "more memory than the GPU has, at construction": (
        TRAIN.replace("nn.Linear(64, 256)", "nn.Linear(64, 256), nn.Linear(1 << 20, 1 << 16)"),
        [],
        r"bad.py:9: OutOfMemoryError: the model alone takes 274.9 GB so far, and the GPU has 84.9 GB",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_exit_2(
    name: str, shardtoll: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, options, pattern = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text(text)
    ran = shardtoll("dryrun", *options, "bad.py")
    assert (ran.code, ran.out) == (2, "")
    said = [line for line in ran.err.splitlines() if line.startswith("shardtoll: ")]
    assert len(said) == 1, ran.err
    assert re.search(pattern, said[0]), said[0]
    assert "Traceback" not in ran.err


def test_a_script_of_one_step_has_a_wider_band(
    shardtoll: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bands = []
    for steps in (1, 2):
        Path("few.py").write_text(TRAIN.replace("range(100)", f"range({steps})"))
        ran = shardtoll("dryrun", "--world", 8, "--json", "few.py")
        assert ran.code == 0, ran.err
        answer = json.loads(ran.out)
        assert any("makes one optimizer step" in note for note in answer["notes"]) == (steps == 1)
        bands.append(answer["step_ns"])
    one, two = bands
    assert one["low"] < two["expected"] < one["high"]
    assert one["low"] / one["expected"] < two["low"] / two["expected"]


def test_a_script_without_a_process_group_is_a_job_of_one(
    shardtoll: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = TRAIN.replace('dist.init_process_group("nccl")', "").replace("DDP(", "(")
    Path("alone.py").write_text(alone)
    assert shardtoll("dryrun", "alone.py").code == 0
    assert shardtoll("dryrun", "--world", 1, "alone.py").code == 0


def test_a_script_without_a_process_group_is_no_job_of_more(
    shardtoll: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = TRAIN.replace('dist.init_process_group("nccl")', "").replace("DDP(", "(")
    Path("alone.py").write_text(alone)
    ran = shardtoll("dryrun", "--world", 16, "alone.py")
    assert (ran.code, ran.out) == (2, "")
    said = [line for line in ran.err.splitlines() if line.startswith("shardtoll: ")]
    assert len(said) == 1
    assert "alone.py made no process group: each of the 16 ranks would train alone" in said[0]


KERNELS = """
import importlib.util
import flash_attn
import triton
import triton.language as tl
from flash_attn.flash_attn_interface import flash_attn_func


@triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def add_one(x, n: tl.int32, BLOCK: tl.constexpr):
    tl.store(x, tl.load(x) + 1)


def launch(x, kind):
    if kind == "triton":
        add_one[(1,)](x, x.numel())
    elif kind == "flash":
        flash_attn_func(x, x, x)

"""
"""The top of a program that has kernels which it may never launch."""


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("none", None),
        ("triton", "train.py:17: NotImplementedError: triton's kernel add_one has no result"),
        (
            "flash",
            "train.py:19: NotImplementedError: flash_attn's kernel flash_attn_interface.flash",
        ),
    ],
)
def test_kernels_that_are_not_installed_can_be_imported_and_not_launched(
    script: Path, shardtoll: Callable[..., Any], kind: str, wanted: str | None
) -> None:
    if any(importlib.util.find_spec(name) for name in ("triton", "flash_attn")):
        pytest.skip("the packages of kernels are installed here")
    step = f"    launch(loss, {kind!r})\n    optimizer.step()"
    script.write_text(KERNELS + TRAIN.replace("    optimizer.step()", step))
    ran = shardtoll("dryrun", "--world", 2, "train.py")
    if wanted is None:
        assert ran.code == 0, ran.err
    else:
        assert (ran.code, wanted in ran.err) == (2, True), ran.err
    assert not {name for name in sys.modules if name.partition(".")[0] in ("triton", "flash_attn")}
