"""`--gpu` and `--fabric` take a name or a TOML file in every command that prices a step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.test_dryrun_command import TRAIN

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

GPU = """
[mine]
title = "Mine"
memory_bytes = 80e9
memory_gbps = {memory}
peak_tflops = {{ bfloat16 = 900, float32 = 60 }}
"""
ROWS = "model,gpus,gpu,seq,mbs,ga,step_s\nllama3.2-1b,8,h100-sxm,2048,1,1,0.3\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    Path("rows.csv").write_text(ROWS)
    Path("own.csv").write_text(ROWS.replace("gpu,", "gpu,net,").replace("h100-sxm,", "gpu.toml,net.toml,"))
    Path("gpu.toml").write_text(GPU.format(memory=3000))
    Path("broken.toml").write_text(GPU.format(memory=-1))
    Path("net.toml").write_text('extends = "h100x8-ib400"\nname = "my-net"\n')
    return ("--gpu", "gpu.toml", "--fabric", "net.toml")


@pytest.fixture
def commands(shardtoll: Callable[..., Any], files: tuple[str, ...]) -> dict[str, tuple[object, ...]]:
    made = shardtoll("dryrun", "--world", 8, "--steps", 2, "--out", "kept", "train.py")
    assert made.code == 0, made.err
    return {
        "dryrun": ("dryrun", "--world", 8, "--json", "train.py"),
        "forecast": ("forecast", "kept", "--json"),
        "forecast eval": ("forecast", "eval", "rows.csv", "--json"),
        "advise": ("advise", "--model", "llama3.2-1b", "--gpus", 8, "--json"),
        "whatif": ("whatif", "kept", "--json"),
    }


@pytest.mark.parametrize("name", ["dryrun", "forecast", "forecast eval", "advise", "whatif"])
def test_a_machine_of_files(
    shardtoll: Callable[..., Any], commands: dict[str, tuple[object, ...]], files: tuple[str, ...], name: str
) -> None:
    command = commands[name]
    # Before the script, whose options are its own.
    before, after = (command[:-1], command[-1:]) if name == "dryrun" else (command, ())
    ran = shardtoll(*before, *files, *after)
    assert ran.code == 0, ran.err
    shipped = shardtoll(*before, "--gpu", "b200-sxm", "--fabric", "b200x8-ib400", *after)
    assert shipped.code == 0, shipped.err
    assert json.loads(ran.out) != json.loads(shipped.out)
    for words, said in (
        (("--gpu", "abacus"), "no GPU named 'abacus'"),
        (("--gpu", "gone.toml"), "GPU file gone.toml cannot be read (No such file or directory)"),
        (("--gpu", "broken.toml"), "GPU broken.toml [mine]: `memory_gbps` is -1"),
        (("--fabric", "nowhere"), "no fabric named 'nowhere'"),
        (("--fabric", "gone.toml"), "fabric file gone.toml cannot be read (No such file or directory)"),
    ):
        refused = shardtoll(*before, *words, *after)
        assert refused.code == 2
        assert said in refused.err.splitlines()[-1], refused.err


def test_rows_may_name_files_in_their_columns(shardtoll: Callable[..., Any], files: tuple[str, ...]) -> None:
    own = json.loads(shardtoll("forecast", "eval", "own.csv", "--json").out)["rows"][0]
    asked = json.loads(shardtoll("forecast", "eval", "rows.csv", *files, "--json").out)["rows"][0]
    plain = json.loads(shardtoll("forecast", "eval", "rows.csv", "--json").out)["rows"][0]
    assert own["step_s"] == asked["step_s"] != plain["step_s"]
    # The row's own time was measured on another machine.
    assert (plain["measured_step_s"], asked["measured_step_s"]) == (0.3, None)


def test_another_gpu_changes_the_compute_of_a_replayed_step(
    shardtoll: Callable[..., Any], commands: dict[str, tuple[object, ...]]
) -> None:
    answers = {
        gpu: json.loads(shardtoll(*commands["whatif"], "--gpu", gpu).out)
        for gpu in ("h100-sxm", "b200-sxm", "x2")
    }
    same, faster = answers["h100-sxm"], answers["b200-sxm"]
    assert same["after"] == same["before"]
    assert faster["after"]["compute_ns"] < faster["before"]["compute_ns"]
    assert faster["after"]["exposed_comm_ns"] >= 0.99 * faster["before"]["exposed_comm_ns"]
    assert faster["saving_low_ns"] <= faster["saving_ns"] <= faster["saving_high_ns"]
    assert answers["x2"]["after"]["compute_ns"] == pytest.approx(same["before"]["compute_ns"] / 2, rel=0.01)


def test_the_usual_fabric_goes_by_the_gpu_and_not_by_the_name_of_its_file(
    shardtoll: Callable[..., Any], files: tuple[str, ...]
) -> None:
    Path("h100.toml").write_text(Path("gpu.toml").read_text())
    ran = shardtoll("advise", "--model", "llama3.2-1b", "--gpus", 8, "--gpu", "h100.toml")
    assert ran.code == 2
    assert "no usual fabric of GPU 'mine': name one with --fabric" in ran.err
    Path("own.toml").write_text(Path("gpu.toml").read_text().replace("[mine]", "[h100-of-ours]"))
    ran = shardtoll("advise", "--model", "llama3.2-1b", "--gpus", 8, "--gpu", "own.toml", "--json")
    assert ran.code == 0, ran.err
    notes = json.loads(ran.out)["notes"]
    assert "No --fabric was given: h100x8-ib400, the usual one of h100-of-ours, is assumed." in notes
