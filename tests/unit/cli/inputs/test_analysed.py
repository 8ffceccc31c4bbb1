"""What the analyses found is kept, used for nothing else, and never trusted further than its checks go."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shardtoll.analyzers.roofline import load_fabric
from shardtoll.cli.inputs import inputs as room
from shardtoll.ledger import Ledger, Report, analyze, read_run
from shardtoll.ledger.tables.ledger import shifted_by
from shardtoll.profiler.traces.job import cache
from tests import small_traces
from tests.unit.cli.conftest import Ran, write_run


@pytest.fixture
def analysed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Report, bool]]:
    """Return the report, and whether the analyses ran for it."""
    ran: list[Ledger] = []

    def counted(ledger: Ledger, fabric: object = None) -> Report:
        ran.append(ledger)
        return analyze(ledger, fabric)

    monkeypatch.setattr(room, "analyze", counted)

    def get(ledger: Ledger, fabric: str | None = None, *, keep: bool = True) -> tuple[Report, bool]:
        ran.clear()
        chosen = None if fabric is None else load_fabric(fabric)
        return room.analysed(ledger, chosen, keep=keep), bool(ran)

    return get


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{cache.REPORT_SUFFIX}"))


def test_the_second_time_nothing_is_analysed(analysed, run_folder: Path, own_cache: Path):
    ledger = read_run(run_folder)
    first, ran = analysed(ledger)
    assert ran
    assert first.findings
    second, ran = analysed(read_run(run_folder))
    assert not ran
    assert second == first
    assert second.to_json() == analyze(ledger).to_json()
    assert [path.parent for path in entries(own_cache)] == [own_cache]


def test_without_the_cache_all_is_analysed_and_nothing_kept(analysed, run_folder: Path, own_cache: Path):
    ledger = read_run(run_folder)
    assert [analysed(ledger, keep=False)[1] for _ in range(2)] == [True, True]
    assert not entries(own_cache)


def test_whatever_the_analyses_depend_on_makes_another_entry(
    analysed, run_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    ledger = read_run(run_folder)
    analysed(ledger)
    others = [
        replace(ledger, run=replace(ledger.run, torch="9.9")),
        replace(ledger, groups=ledger.groups[:1]),
        replace(ledger, tables=shifted_by(ledger.tables, 1)),
    ]
    for other in others:
        report, ran = analysed(other)
        assert ran
        assert report.run == other.run
    report, ran = analysed(ledger, "loopback-gloo")
    assert ran
    assert report.fabric.name == "loopback-gloo"
    assert not analysed(ledger)[1]
    monkeypatch.setattr(cache, "code_digest", lambda packages: f"other code of {packages}")
    assert analysed(ledger)[1]


@pytest.mark.parametrize("where", [0.02, 0.3, 0.6, 0.99])
def test_a_damaged_entry_is_made_anew(analysed, run_folder: Path, own_cache: Path, where: float):
    ledger = read_run(run_folder)
    first, _ = analysed(ledger)
    (path,) = entries(own_cache)
    data = bytearray(path.read_bytes())
    place = int(len(data) * where)
    data[place : place + 8] = bytes(8)
    path.write_bytes(data)
    again, _ = analysed(ledger)
    assert again == first
    path.write_bytes(data[:place])
    assert analysed(ledger) == (first, True)
    assert analysed(ledger) == (first, False)


def test_an_entry_that_seems_encrypted_is_made_anew(analysed, run_folder: Path, own_cache: Path):
    ledger = read_run(run_folder)
    first, _ = analysed(ledger)
    (path,) = entries(own_cache)
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    assert analysed(ledger) == (first, True)


def test_a_folder_that_cannot_be_written_is_no_error(
    analysed, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHARDTOLL_CACHE", str(tmp_path / "file" / "below"))
    assert [analysed(read_run(run_folder))[1] for _ in range(2)] == [True, True]


def test_commands_share_what_was_found(
    shardtoll: Callable[..., Ran], run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    printed = shardtoll("report", run_folder).out
    other = write_run(tmp_path / "runs" / "b", mended=True)
    budget = tmp_path / "budget.toml"
    budget.write_text("max_collectives = 1\n")
    wanted = [("compare", run_folder, other), ("check", run_folder, "--budget", budget)]
    first = [shardtoll(*command) for command in wanted]
    monkeypatch.setattr(room, "analyze", None)  # whoever calls it now fails
    assert shardtoll("report", run_folder).out == printed
    assert [shardtoll(*command) for command in wanted] == first


def test_a_kept_report_is_shown_without_pandas_and_analyses(run_folder: Path):
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from shardtoll.cli import main\n"
        "main()"
    )
    command = [sys.executable, "-c", code, "report", str(run_folder)]
    loaded = [
        {*subprocess.run(command, check=True, capture_output=True, text=True).stderr.split()}
        for _ in range(2)
    ]
    needless = {"pandas", "shardtoll.analyzers.analyses", "shardtoll.analyzers.context.context"}
    assert needless <= loaded[0]
    assert not needless & loaded[1]


def test_a_report_of_a_trace_imports_no_more_than_it_uses(tmp_path: Path):
    small_traces.write_job(tmp_path / "traces")
    trace = next(path for path in sorted((tmp_path / "traces").iterdir()) if "json" in path.name)
    report = ["report", str(trace), "--no-cache", "-o", str(tmp_path / "bill.json")]
    command = [sys.executable, "-X", "importtime", "-m", "shardtoll.cli", *report]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if "import time:" in line}
    # Reading and grouping datasets, packed formats, checks of users' patterns.
    needless = {
        *("pyarrow.acero", "pyarrow.dataset", "pyarrow.parquet", "ssl", "zstandard"),
        "shardtoll.profiler.traces.collectives.unambiguous",
    }
    assert not needless & loaded
