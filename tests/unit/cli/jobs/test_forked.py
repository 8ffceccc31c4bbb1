"""Ranks of a job: forked from one process, or spawned where a library's threads make a fork unsafe."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from shardtoll.cli.jobs import fork_server
from shardtoll.cli.jobs.forked import Forked
from shardtoll.cli.jobs.ranks import JobError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
STARTS_A_THREAD = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True, name="of a library").start()
"""

SHOWS_ITSELF = """
import json, os, pathlib, sys
if "RANK" in os.environ:
    files = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            files[number] = os.readlink("/proc/self/fd/" + number)
        except OSError:
            pass
    shown = {"files": files, "arguments": pathlib.Path("/proc/self/cmdline").read_text()}
    pathlib.Path(os.environ["SHOWN"], "shown." + os.environ["RANK"]).write_text(json.dumps(shown))
"""
"""Of a process that has only begun."""


WORK = """
import os, pathlib, sys, time
def note(folder):
    print('of rank', os.environ['RANK'], os.environ['WORD'])
    pathlib.Path(folder, os.environ['RANK']).write_text(f'{os.getppid()}')
def fails(folder):
    sys.exit(3 if os.environ['RANK'] == '1' else 0)
def waits(folder):
    there = [name for name in ('torch._dynamo', 'torch.distributed.fsdp') if name in sys.modules]
    pathlib.Path(folder, 'began.' + os.environ['RANK']).write_text(' '.join(there))
    time.sleep(60)
"""


@pytest.fixture
def forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A server that forks its ranks, after a first job; and the folder of all."""
    monkeypatch.setenv("PYTHONPATH", found_in(tmp_path))
    with Forked(tmp_path / "server.log") as server:
        run(server, "note", tmp_path)
        yield server, tmp_path


@pytest.fixture(scope="module")
def spawned(tmp_path_factory: pytest.TempPathFactory):
    """The same of one that spawns them. Each rank imports torch, seconds of work: tests share the server."""
    folder = tmp_path_factory.mktemp("spawned")
    # `site` imports it in every interpreter, before anything of ours.
    (folder / "sitecustomize.py").write_text(STARTS_A_THREAD + SHOWS_ITSELF)
    with pytest.MonkeyPatch.context() as patch, Forked(folder / "server.log") as server:
        patch.setenv("PYTHONPATH", found_in(folder))
        patch.setenv("SHOWN", str(folder))
        # As an argument the second would be too long.
        run(server, "note", folder, **{f"LONG{number}": "x" * 100_000 for number in range(2)})
        for rank in range(2):
            # Later jobs write it again.
            (folder / f"shown.{rank}").rename(folder / f"noted.{rank}")
        yield server, folder


def found_in(folder: Path) -> str:
    """Put `work.py` in the folder; return the path by which ranks find it."""
    (folder / "work.py").write_text(WORK)
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def run(server: Forked, function: str, folder: Path, limit_s: float = 60.0, **variables: str) -> None:
    server.run(
        ("work", function, [str(folder)]), [{"WORD": f"secret{rank}", **variables} for rank in range(2)],
        limit_s=limit_s, log=folder / "ranks.txt",
    )  # fmt: skip


def test_ranks_run_without_threads_of_a_library(forked: tuple[Forked, Path]):
    runs_jobs(*forked, threads=False)


def test_ranks_run_with_threads_of_a_library(spawned: tuple[Forked, Path]):
    runs_jobs(*spawned, threads=True)


def runs_jobs(server: Forked, folder: Path, threads: bool) -> None:
    assert (folder / "ranks.txt").read_text() == (
        "--- rank 0\nof rank 0 secret0\n--- rank 1\nof rank 1 secret1\n"
    )
    parents = {(folder / str(rank)).read_text().split()[0] for rank in range(2)}
    assert parents == {str(server._process and server._process.pid)}
    log = (folder / "server.log").read_text()
    assert (fork_server._NO_FORK in log) == threads
    with pytest.raises(JobError, match="rank 1 ended with exit code 3"):
        run(server, "fails", folder)
    with pytest.raises(JobError, match=r"did not finish in time \(0 s\)"):
        run(server, "waits", folder, limit_s=0.5)
    # The limit begins once all have imported torch: that alone takes longer.
    for rank in range(2):
        assert (folder / f"began.{rank}").read_text() == "torch._dynamo torch.distributed.fsdp"
    # Said once, however many jobs there are.
    assert (folder / "server.log").read_text().count(fork_server._NO_FORK) == threads


def test_a_spawned_rank_shares_nothing_with_the_server_and_keeps_its_environment_to_itself(
    spawned: tuple[Forked, Path],
):
    _, folder = spawned
    for rank in range(2):
        shown = json.loads((folder / f"noted.{rank}").read_text())
        assert "work" in shown["arguments"]
        assert "secret" not in shown["arguments"]
        log = str(folder / f"ranks.txt.{rank}")
        assert [shown["files"][number] for number in "012"] == [os.devnull, log, log]
        # One more: it is closed once the rank has imported.
        assert sum("pipe:" in where for where in shown["files"].values()) == 1
