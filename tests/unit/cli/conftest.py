"""Run folders written by the store, and the command line run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shardtoll.cli import main
from shardtoll.ledger import RankWriter
from shardtoll.ledger.records.step_rows import StepRows
from tests import sample_reports


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No test reads or fills the user's cache of traces."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SHARDTOLL_CACHE", str(folder))
    return folder


@pytest.fixture
def shardtoll(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], plain_terminal: None
) -> Callable[..., Ran]:
    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["shardtoll", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        code = left.value.code
        return Ran(0 if code is None else int(code), printed.out, printed.err)

    return run


def write_run(folder: Path, *, mended: bool = False) -> Path:
    """Write the ordinary report's records as a run of four ranks and two steps; `mended`: without any."""
    rows = [row for row in sample_reports.collectives() if not mended]
    for rank in range(4):
        run = replace(sample_reports.RUN, ranks_seen=(rank,))
        groups = [group for group in sample_reports.GROUPS if rank in group.ranks]
        writer = RankWriter(folder, rank, "test")
        for number in range(2):
            mine = tuple(row for row in rows if row.rank == rank and row.step == number)
            writer.append(StepRows(sample_reports.step(number, rank), mine))
        writer.close(run, groups)
    return folder


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "a")
