"""What `shardtoll run` says before it starts anything; real runs: tests/live/test_run_script.py."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from shardtoll.cli.jobs import run_job
from shardtoll.cli.jobs.run_job import RunOptions
from shardtoll.profiler.live.entry import launching


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("")
    path = Path("train.py")
    path.write_text("raise AssertionError('it ran')")
    return path


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["gone.py"], "there is no script gone.py: name a Python file, then its own arguments"),
        (
            ["--nproc", "2", "gone.py"],
            "there is no script gone.py: name a Python file, then its own arguments",
        ),
        (
            ["--level", "all", "train.py"],
            "--level all is unknown: it is one of schedule, survey, watch",
        ),
        (
            ["--checks", "data, norms", "train.py"],
            "--checks norms is unknown: choose among gradients, replicas, data",
        ),
        (
            ["--out", "taken/a", "train.py"],
            "taken/a cannot be made (Not a directory): name another folder with --out",
        ),
        (
            ["-o", "no/bill.json", "train.py"],
            "cannot write no/bill.json (No such file or directory): name a file in a folder that exists",
        ),
    ],
)
def test_mistakes_are_told_in_one_line_before_the_script_runs(
    shardtoll, script: Path, arguments: list[str], line: str
):
    ran = shardtoll("run", *arguments)
    assert (ran.code, ran.out, ran.err) == (2, "", f"shardtoll: {line}\n")


def test_a_rank_whose_mistake_rank_0_does_not_share_tells_it_in_the_end(
    shardtoll, script: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(run_job, "RANK_0_TELLS_S", 0.2)
    began = time.monotonic()
    ran = shardtoll("run", "gone.py")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGINT, 130, "interrupted; no step was recorded: run it again"),
        (signal.SIGTERM, 143, "ended by SIGTERM; no step was recorded: run it again"),
    ],
)
def test_a_signal_before_any_step(
    shardtoll, script: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int, line: str
):
    def stopped(*_: object) -> int:
        raise launching.Stopped(number)

    monkeypatch.setattr(launching, "start_ranks", stopped)
    ran = shardtoll("run", "--nproc", "2", "--out", "a", "train.py")
    assert (ran.code, ran.out, ran.err) == (code, "", f"shardtoll: {line}\n")


@pytest.mark.parametrize(
    ("code", "ended_by", "said"),
    [
        (0, None, ""),
        (1, None, "shardtoll: a rank ended with exit code 1; which one and where: shardtoll hang a\n"),
        (2, None, ""),
        (
            134,
            "rank 1 was ended by SIGABRT",
            "shardtoll: rank 1 was ended by SIGABRT; where: shardtoll hang a\n",
        ),
    ],
)
def test_a_rank_that_fails_has_a_hint_in_one_line(
    shardtoll, script: Path, monkeypatch: pytest.MonkeyPatch, code: int, ended_by: str | None, said: str
):
    def failed(*_: object) -> launching.Outcome:
        Path("a").mkdir(exist_ok=True)
        (Path("a") / "run.rank00000.json").write_text("{}")
        return launching.Outcome(code, ended_by)

    monkeypatch.setattr(launching, "start_ranks", failed)
    ran = shardtoll("run", "--nproc", "2", "--out", "a", "train.py")
    assert (ran.code, ran.out, ran.err) == (code, "", said)


def test_ranks_get_every_option():
    options = RunOptions(
        Path("a"), "watch", 7, True, 3, "torch.optim:SGD.step", (Path("b.json"), Path("c.csv")), True, 80
    )
    words = options.as_arguments()
    assert words == [
        "--out", "a", "--level", "watch", "--survey-every", "7", "--steps", "3",
        "--step-on", "torch.optim:SGD.step", "--width", "80",
        "-o", "b.json", "-o", "c.csv", "--trace", "--json",
    ]  # fmt: skip
