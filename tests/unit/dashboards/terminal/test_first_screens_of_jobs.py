"""First screens of real and made-up jobs: golden files of 24 lines, 100 columns, each read by somebody.

The reports below tests/data/first_screens were made once, by `tests/stored_reports.py`; what is shown of them
does not depend on this machine. Traces are analysed anew.
"""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from shardtoll.analyzers import run
from shardtoll.dashboards.terminal.first_screen import LINES
from shardtoll.ledger import Report
from shardtoll.profiler.traces import read_traces
from tests.shared_inputs import shared
from tests.unit.dashboards.terminal.test_first_screen import shown

STORED = Path(__file__).parents[3] / "data" / "first_screens"
WIDTH = 100
VERDICT_LINES = 2


def held(report: Report, name: str, golden: Callable[[str, str], None]) -> list[str]:
    lines = [line.rstrip() for line in shown(report, WIDTH).splitlines()]
    assert len(lines) <= LINES
    golden(f"first-screen-{name}.txt", "".join(f"{line}\n" for line in lines))
    return lines


def verdict_of(lines: list[str], report: Report) -> int:
    """Return how many lines the verdict takes, up to the line of the run."""
    return next(place for place, line in enumerate(lines) if f"fabric {report.fabric.name}" in line)


@pytest.mark.parametrize("path", sorted(STORED.glob("*.json.gz")), ids=lambda path: path.name.split(".")[0])
def test_stored_reports(path: Path, golden: Callable[[str, str], None]):
    report = Report.from_json(gzip.decompress(path.read_bytes()).decode())
    lines = held(report, path.name.split(".")[0], golden)
    if not any(finding.severity == "error" for finding in report.findings):
        assert verdict_of(lines, report) <= VERDICT_LINES


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("dlrm-8-ranks", "param_dlrm_v100_8ranks"),
        ("b200-one-rank", "tracelens_b200_eager_rank0of8.json.gz"),
        ("serving-decode", "outside/single/sglang_Qwen3-8B_decode.json.gz"),
    ],
)
def test_traces(name: str, path: str, golden: Callable[[str, str], None]):
    (job,) = read_traces([str(shared("traces", *path.split("/")))], jobs=1, cache=False)
    report = run(job.ledger)
    lines = held(report, name, golden)
    assert verdict_of(lines, report) <= VERDICT_LINES


def test_a_folder_with_missing_ranks(
    golden: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "benchmarks"))
    importlib.import_module("synthetic_job").main(
        [str(tmp_path / "job"), "--ranks", "4", "--steps", "3", "--layers", "4", "--missing", "1,2"]
    )
    (job,) = read_traces([str(tmp_path / "job")], jobs=1, cache=False)
    lines = held(run(job.ledger), "missing-ranks", golden)
    assert "ranks 1-2 of 4 left no records" in lines
