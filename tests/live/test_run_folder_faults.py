"""A run folder that is removed or renamed, or that another job takes, while a job writes to it."""

from __future__ import annotations

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
