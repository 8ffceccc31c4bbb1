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
        "def imports(folder):\n"
        "    import torch._dynamo, torch.distributed.fsdp\n"
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


def test_a_spawned_rank_shares_nothing_with_the_server_and_keeps_its_environment_to_itself(
    forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "sitecustomize.py").write_text(STARTS_A_THREAD + SHOWS_ITSELF)
    monkeypatch.setenv("SHOWN", str(tmp_path))
    # As an argument the second would be too long.
    long = {f"LONG{number}": "x" * 100_000 for number in range(2)}
    forked.run(
        ("work", "note", [str(tmp_path)]), [{"WORD": f"secret{rank}", **long} for rank in range(2)],
        limit_s=60.0, log=tmp_path / "ranks.txt",
    )  # fmt: skip
    assert (tmp_path / "ranks.txt").read_text() == (
        "--- rank 0\nof rank 0 secret0\n--- rank 1\nof rank 1 secret1\n"
    )
    for rank in range(2):
        shown = json.loads((tmp_path / f"shown.{rank}").read_text())
        assert "work" in shown["arguments"]
        assert "secret" not in shown["arguments"]
        log = str(tmp_path / f"ranks.txt.{rank}")
        assert [shown["files"][number] for number in "012"] == [os.devnull, log, log]
        # One more: it is closed once the rank has imported.
        assert sum("pipe:" in where for where in shown["files"].values()) == 1


def test_the_limit_of_a_spawned_rank_begins_once_it_has_imported_torch(forked: Forked, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(STARTS_A_THREAD)
    run(forked, "imports", tmp_path, limit_s=0.5)
