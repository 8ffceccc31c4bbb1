"""Ranks of a job: forked from one process, or spawned where a library's threads make a fork unsafe."""

from __future__ import annotations

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


@pytest.fixture
def forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A server that imports next to nothing; `work.py` lies where its ranks find it."""
    (tmp_path / "work.py").write_text(
        "import os, sys, pathlib\n"
        "def note(folder):\n"
        "    print('of rank', os.environ['RANK'], os.environ['WORD'])\n"
        "    pathlib.Path(folder, os.environ['RANK']).write_text(f'{os.getppid()}')\n"
        "def fails(folder):\n"
        "    sys.exit(3 if os.environ['RANK'] == '1' else 0)\n"
        "def waits(folder):\n"
        "    import time; time.sleep(60)\n"
    )
    # `site` imports it in every interpreter, before anything of ours.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with Forked(tmp_path / "server.log") as server:
        yield server


def run(server: Forked, function: str, folder: Path, limit_s: float = 60.0) -> None:
    server.run(
        ("work", function, [str(folder)]), [{"WORD": f"word{rank}"} for rank in range(2)],
        limit_s=limit_s, log=folder / "ranks.txt",
    )  # fmt: skip


@pytest.mark.parametrize("threads", [False, True])
def test_ranks_run_with_threads_of_a_library_and_without(forked: Forked, tmp_path: Path, threads: bool):
    (tmp_path / "sitecustomize.py").write_text(STARTS_A_THREAD if threads else "")
    run(forked, "note", tmp_path)
    assert (tmp_path / "ranks.txt").read_text() == (
        "--- rank 0\nof rank 0 word0\n--- rank 1\nof rank 1 word1\n"
    )
    parents = {(tmp_path / str(rank)).read_text().split()[0] for rank in range(2)}
    assert parents == {str(forked._process and forked._process.pid)}
    log = (tmp_path / "server.log").read_text()
    assert (fork_server._NO_FORK in log) == threads
    with pytest.raises(JobError, match="rank 1 ended with exit code 3"):
        run(forked, "fails", tmp_path)
    with pytest.raises(JobError, match=r"did not finish in time \(1 s\)"):
        run(forked, "waits", tmp_path, limit_s=1.0)
    # Said once, however many jobs there are.
    assert (tmp_path / "server.log").read_text().count(fork_server._NO_FORK) == threads
