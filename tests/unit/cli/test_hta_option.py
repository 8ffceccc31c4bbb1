from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from shardtoll.ledger import Report
from tests import sample_reports
from tests.unit.analyzers.hta.test_hta import host, launched, step


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDTOLL_CACHE", str(tmp_path / "cache"))


def write_trace(path: Path, rank: int, events: list[dict[str, Any]]) -> None:
    document = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"},
        "traceEvents": events,
    }
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


def job(folder: Path) -> Path:
    folder.mkdir()
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    for rank in range(2):
        events = [step(3, 0, 1000), *launched(1, 10, 20, 100), *launched(2, 30, 130, 100, name)]
        write_trace(folder / f"rank{rank}.json.gz", rank, events)
    return folder


def test_hta_becomes_part_of_the_report(shardtoll, tmp_path: Path) -> None:
    saved = tmp_path / "x.json"
    ran = shardtoll("report", job(tmp_path / "traces"), "--hta", "--width", 100, "-o", saved)
    assert (ran.code, ran.err) == (0, "")
    assert "what HTA says, Holistic Trace Analysis" in ran.out
    assert "critical path" in ran.out
    hta = Report.load(saved).hta
    assert hta is not None
    assert [path.rank for path in hta.critical_paths] == [0, 1]
    assert [(path.step, path.communication_ns) for path in hta.critical_paths] == [(3, 100_000)] * 2
    # A saved report shows what it holds, without traces.
    assert "what HTA says" in shardtoll("report", saved, "--show", "hta").out


def test_without_the_option_hta_is_not_asked(shardtoll, tmp_path: Path) -> None:
    saved = tmp_path / "x.json"
    assert shardtoll("report", job(tmp_path / "traces"), "-o", saved).code == 0
    assert Report.load(saved).hta is None


def test_a_rank_without_device_work_is_a_line(shardtoll, tmp_path: Path) -> None:
    folder = job(tmp_path / "traces")
    write_trace(folder / "rank1.json.gz", 1, [step(3, 0, 1000), host("aten::mm", 5, 5)])
    ran = shardtoll("report", folder, "--hta", "--width", 200)
    assert ran.code == 0
    assert "no device work in the trace, nothing for HTA to look at" in ran.out


def test_run_folders_and_saved_reports_are_refused_in_one_line(
    shardtoll, run_folder: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(sample_reports.report().to_json(), encoding="utf-8")
    for path, what in ((run_folder, "a run folder"), (saved, "a saved report")):
        ran = shardtoll("report", path, "--hta")
        assert (ran.code, ran.out) == (2, "")
        (line,) = ran.err.splitlines()
        assert f"--hta does not apply to {path}, {what}" in line
