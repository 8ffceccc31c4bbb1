"""Waiting for gloo's threads: told apart by their names, and by whether they run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardtoll.profiler.live.times import settling

STAT = "7 ({name}) {state} 1 1 1 0"


def task(folder: Path, name: str, state: str) -> str:
    folder.mkdir()
    (folder / "stat").write_text(STAT.format(name=name, state=state))
    return str(folder)


@pytest.mark.parametrize(
    ("name", "state", "runs"),
    [
        ("pt_gloo_runloop", "R", True),
        ("gloo (odd) name", "R", True),
        ("pt_gloo_runloop", "S", False),
        ("python", "R", False),
    ],
)
def test_a_thread_of_gloos_that_runs_is_told_by_its_line(tmp_path: Path, name: str, state: str, runs: bool):
    assert settling._runs(task(tmp_path / "1", name, state)) == runs


def test_a_thread_that_ended_meanwhile_is_not_asked_again(tmp_path: Path):
    assert not settling._runs(str(tmp_path / "gone"))


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells nothing of threads")
def test_a_process_has_threads_to_look_at_and_none_is_gloos():
    """In a process of its own: another test may have begun a gloo group in this one."""
    assert os.listdir("/proc/self/task")
    program = "from shardtoll.profiler.live.times import settling\nassert not settling._gloo_runs()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_whoever_leaves_waits_for_a_running_thread_beyond_its_own_pause(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    asked: list[float] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def runs() -> bool:
        asked.append(now[0])
        return True

    monkeypatch.setattr(settling, "_gloo_runs", runs)
    settling.settle(settling.LEAVING_S)
    assert asked[0] == settling.LEAVING_S
    assert asked[-1] >= settling.LEAVING_S + settling._MOST_S
    assert len(asked) > 10
    now[0] = 0.0
    monkeypatch.setattr(settling, "_gloo_runs", lambda: False)
    settling.settle()
    assert now[0] == settling._PAUSE_S
