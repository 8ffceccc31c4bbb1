"""The demo as a user runs it: the example of its own help, then what it wrote."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardtoll.dashboards.attempts.side_by_side import rows
from shardtoll.ledger import Report
from shardtoll.samples.dit_modulation.common import Options
from tests.live import tutorial

pytestmark = [pytest.mark.live, pytest.mark.slow]

RANKS = 4
ATTEMPTS = ("dit-chunk", "dit-scatter", "dit-partial", "dit-dtensor")
SIZES = Options()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from shardtoll.cli import main; main()", *arguments]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder the demo wrote and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    help_text = subprocess.run(command("demo", "--help"), capture_output=True, text=True, check=True).stdout
    examples = [line for line in help_text.splitlines() if line.strip().startswith("shardtoll demo")]
    # test_incidents.py runs the other.
    (example,) = [line for line in examples if "--incidents" not in line]
    ran = subprocess.run(
        command(*shlex.split(example)[1:], "--width", "160"),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=280,
        check=False,
    )
    logs = "\n".join(log.read_text()[-1500:] for log in folder.rglob("*.log"))
    assert ran.returncode == 0, f"{ran.stderr}\n{logs}"
    return folder / "out" / "demo", ran.stdout


def report_of(demo: tuple[Path, str], attempt: str) -> Report:
    return Report.load(demo[0] / attempt / "report.json")


def evidence(finding: Any) -> dict[str, Any]:
    return {item.label: item.value for item in finding.evidence}


def test_everything_promised_is_written(demo: tuple[Path, str]) -> None:
    folder, printed = demo
    assert (folder / "index.html").stat().st_size > 1000
    for attempt in ATTEMPTS:
        assert f'href="{attempt}/report.html"' in (folder / "index.html").read_text()
        assert (folder / attempt / "report.html").stat().st_size > 100_000
        assert json.loads((folder / attempt / "report.json").read_text())["schema_version"] == 1
        assert attempt in printed
    # Long labels are broken over lines.
    assert all(word in printed for row in rows([]) for word in row.label.split())
    assert "measured on this machine" in (folder / "fabric.toml").read_text()


def test_only_the_chunked_attempt_has_a_wrong_gradient(demo: tuple[Path, str]) -> None:
    for attempt in ATTEMPTS:
        report = report_of(demo, attempt)
        wrong = [f for f in report.findings if f.kind == "wrong-gradient"]
        assert any(notice.kind == "gradients-checked" for notice in report.notices), "somebody looked"
        if attempt != "dit-chunk":
            assert not wrong, attempt
            continue
        (finding,) = wrong
        assert finding.where.parameter == "weight"
        assert finding.severity == "error"
        assert "a reduction is missing" in finding.title
        assert f"{RANKS} ranks" in finding.title


def test_the_scattered_attempt_computes_the_weight_gradient_on_every_rank(demo: tuple[Path, str]) -> None:
    report = report_of(demo, "dit-scatter")
    one = 2 * SIZES.hidden * SIZES.hidden * SIZES.samples
    backward = [f for f in report.findings if f.kind == "duplicated-compute" and f.where.phase == "backward"]
    (finding,) = backward
    assert finding.where.op == "aten.mm.default"
    assert finding.ranks == tuple(range(RANKS))
    facts = evidence(finding)
    assert facts["factor"] == RANKS
    assert facts["FLOPs done per step"] == RANKS * one
    assert facts["FLOPs needed per step"] == one
    assert "scatter.py" in (finding.where.source or "")


def test_the_partial_attempt_is_right_and_does_nothing_twice(demo: tuple[Path, str]) -> None:
    # That every rank updates the weight is a choice, and told as one.
    findings = report_of(demo, "dit-partial").findings
    kinds = {finding.kind for finding in findings if finding.severity != "info"}
    assert "duplicated-compute" not in kinds
    assert not [f for f in report_of(demo, "dit-partial").findings if f.severity == "error"]


def test_conservation_completeness_and_floors_hold_in_every_attempt(demo: tuple[Path, str]) -> None:
    for attempt in ATTEMPTS:
        report = report_of(demo, attempt)
        assert report.fabric.provenance.startswith("measured on this machine")
        assert set(report.run.ranks_seen) == set(range(RANKS))
        for step in report.tables["steps"].to_pylist():
            parts = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns")
            assert sum(step[part] for part in parts) == step["duration_ns"]
        for count in report.tables["counts"].to_pylist():
            assert count["issued"] == count["recorded"]
        moved = [c for c in report.tables["collectives"].to_pylist() if c["message_bytes"]]
        assert all(c["floor_ns"] > 0 for c in moved)
        assert "unmatched-collectives" not in {finding.kind for finding in report.findings}


def test_the_tutorial_goes_on_from_here(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    # Printed at 160 columns above, a table; the reader's terminal shows columns one below the other.
    shown = next(block.text for block in tutorial.blocks() if block.text.startswith("dit-chunk\n"))
    assert tutorial.run(folder.parents[1], {"shardtoll demo": shown}) == []
