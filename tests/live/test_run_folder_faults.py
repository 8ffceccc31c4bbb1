"""A run folder that is removed, renamed or emptied in mid-run, a full disk, a job that changes its folder."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from shardtoll.ledger import read_run
from shardtoll.profiler import audit
from tests.live import test_run_folder_faults as here
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live


def steps(out: str, change: str) -> dict[str, Any]:
    """Train three steps; rank 0 changes the folder after the first."""
    folder = Path(out)
    session = audit(out=folder, level="survey").open()
    for number in range(3):
        with session.step():
            dist.all_reduce(torch.ones(8))
        dist.barrier()
        if number == 0 and dist.get_rank() == 0:
            if change == "removed":
                shutil.rmtree(folder)
            elif change == "renamed":
                folder.rename(folder.with_name("elsewhere"))
            else:
                for path in folder.glob("steps*"):
                    path.write_bytes(b"")
        dist.barrier()
    session.close()
    if session.ledger is None:
        return {}
    return _told(session)


def full(out: str) -> dict[str, Any]:
    """Train on while the disk is full for both ranks, from the third step on; the limit stands in for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    trained = 0
    try:
        with audit(out=out, level="survey") as session:
            for number in range(6):
                if number == 2:
                    own = Path(out).glob(f"*.rank{dist.get_rank():05d}.arrows")
                    most = max(path.stat().st_size for path in own)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (most + 100, hard))
                with session.step():
                    dist.all_reduce(torch.ones(8))
                trained += 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return {"trained": trained, **({} if session.ledger is None else _told(session))}


def moving(out: str) -> dict[str, Any]:
    """Name the run folder from the working folder, and go to another before the session ends."""
    before = Path.cwd()
    os.chdir(Path(out).parent)
    try:
        with audit(out=Path(out).name, level="survey") as session, session.step():
            os.chdir(before)
            dist.all_reduce(torch.ones(8))
    finally:
        os.chdir(before)
    return {} if session.ledger is None else _told(session)


def _told(session: Any) -> dict[str, Any]:
    tables = session.ledger.tables
    rows = zip(*(tables["steps"].column(name).to_pylist() for name in ("rank", "step")), strict=True)
    return {
        "steps": sorted(rows),
        "notices": sorted(set(tables["notices"].column("kind").to_pylist())),
    }


WHOLE = [[rank, step] for rank in range(2) for step in range(3)]


@pytest.mark.parametrize("change", ["removed", "renamed"])
def test_no_record_is_lost_and_the_report_says_so(change: str, tmp_path: Path) -> None:
    first, _ = run_ranks(here.steps, 2, str(tmp_path / "run"), change)
    assert first["steps"] == WHOLE
    assert "folder-changed" in first["notices"]
    assert "capture-stopped" not in first["notices"]
    kept = read_run(tmp_path / "run")
    assert kept.tables["steps"].num_rows == 6
    assert "folder-changed" in kept.tables["notices"].column("kind").to_pylist()


def test_files_that_were_emptied_are_told_of(tmp_path: Path) -> None:
    first, _ = run_ranks(here.steps, 2, str(tmp_path / "run"), "emptied")
    assert "folder-changed" in first["notices"]
    assert "capture-stopped" not in first["notices"]


def test_a_full_disk_ends_the_capture_and_no_training(tmp_path: Path) -> None:
    first, second = run_ranks(here.full, 2, str(tmp_path / "run"))
    assert (first["trained"], second["trained"]) == (6, 6)
    whole = [[rank, step] for rank in range(2) for step in range(2)]
    assert [row for row in first["steps"] if row[1] < 2] == whole
    assert {"capture-stopped", "folder-changed"} <= set(first["notices"])
    kept = read_run(tmp_path / "run")
    assert kept.tables["steps"].num_rows >= len(whole)


def test_a_job_may_change_its_working_folder(tmp_path: Path) -> None:
    first, _ = run_ranks(here.moving, 2, str(tmp_path / "run"))
    assert first == {"steps": [[0, 0], [1, 0]], "notices": []}
    assert read_run(tmp_path / "run").tables["steps"].num_rows == 2
