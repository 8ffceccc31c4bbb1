"""Warnings whose fix saves hardly anything, or whose time is within the parts' error, are information."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from shardtoll.analyzers import run
from shardtoll.analyzers.whatif import small_warnings
from shardtoll.analyzers.whatif.small_warnings import as_infos
from shardtoll.ledger import Figure, Finding, Where
from shardtoll.profiler.traces import read_traces

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
import synthetic_job
from synthetic.spec import Spec

MS = 1_000_000
STEP_NS = 100 * MS


def context(*error_ms: float | None) -> Any:
    """A job of steps of 100 ms: rank n's compute and idle time may be off by the nth of these."""
    rows = pd.DataFrame(
        {"rank": range(len(error_ms)), "parts_error_ns": [each and each * MS for each in error_ms]}
    )
    rows["parts_error_ns"] = rows["parts_error_ns"].astype("float64")
    return SimpleNamespace(parts_rows=rows, share_as_watched=lambda ns: None if ns is None else ns / STEP_NS)


def warning(kind: str, toll_ms: float, saving_ms: float | None = None, **changes: Any) -> Finding:
    saving = None if saving_ms is None else round(saving_ms * MS)
    made = Finding(kind, "warning", "t", round(toll_ms * MS), None, saving, None, 1, (0,), Where())
    return replace(made, **{"confidence": "likely", **changes})


def severities(context: Any, *findings: Finding) -> list[tuple[str, str]]:
    return [(each.kind, each.severity) for each in as_infos(context, findings)]


def test_a_warning_whose_replayed_fix_saves_hardly_anything_is_an_info_below_the_others() -> None:
    tiny = warning("host-sync", 9, 0.9, replayed="without the wait")
    assert severities(context(None), tiny, warning("launch-bound", 3, 3)) == [
        ("launch-bound", "warning"), ("host-sync", "info")
    ]  # fmt: skip
    for kept in (
        replace(tiny, saving_ns=MS),
        # A bound proves nothing, and who is late is said whatever the fix of that rank alone saves.
        replace(tiny, replayed=None),
        replace(tiny, kind="straggler"),
        replace(tiny, severity="error"),
    ):
        assert severities(context(None), kept) == [(kept.kind, kept.severity)]


@pytest.mark.parametrize("kind", ["duplicated-compute", "recompute", "host-sync"])
def test_compute_and_idle_time_within_their_error_are_no_warning(kind: str) -> None:
    # The worst rank's error counts.
    assert severities(context(1, 5), warning(kind, 4)) == [(kind, "info")]
    assert severities(context(1, 5), warning(kind, 6)) == [(kind, "warning")]
    assert severities(context(None, None), warning(kind, 4)) == [(kind, "warning")]


def test_time_that_is_measured_in_each_step_and_what_a_check_saw_stay_warnings() -> None:
    for kind in ("straggler", "exposed-communication", "data-stall", "checkpoint-stall"):
        assert severities(context(5), warning(kind, 4)) == [(kind, "warning")]
    sure = warning("duplicated-data", 4, confidence="certain")
    assert severities(context(5), sure) == [("duplicated-data", "warning")]


def test_fixes_that_save_enough_together_stay_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks that stall in the same steps hide each other: neither fix alone saves anything."""
    together = {"ns": 20 * MS}
    monkeypatch.setattr(small_warnings, "_together_ns", lambda _context, _findings: together["ns"])
    both = [warning(kind, 30, 0, replayed="r", ranks=(1,)) for kind in ("data-stall", "host-sync")]
    assert {severity for _, severity in severities(context(None), *both)} == {"warning"}
    together["ns"] = MS // 2
    assert {severity for _, severity in severities(context(None), *both)} == {"info"}


def test_the_high_end_of_the_band_decides_what_saves_little() -> None:
    tiny = warning("host-sync", 9, 0.9, replayed="without the wait", saving_low_ns=0, saving_high_ns=4 * MS)
    assert severities(context(None), tiny) == [("host-sync", "warning")]


def test_equal_batches_are_a_mistake_whatever_their_time() -> None:
    assert severities(context(5), warning("duplicated-data", 4)) == [("duplicated-data", "warning")]
    equal = warning("duplicated-compute", 4, figures=(Figure("ranks_of_equal_data", 2, "count"),))
    assert severities(context(5), equal) == [("duplicated-compute", "warning")]


def test_ranks_that_stall_in_the_same_steps_hide_no_warning(tmp_path: Path) -> None:
    """Rank 1 waits for its batch while rank 2 reads values: neither fix alone makes the step shorter."""
    knobs = {"ranks": 4, "steps": 4, "layers": 6, "extra_ns": 3 * MS}
    synthetic_job.write_job(tmp_path / "job", Spec(**knobs, straggler=1, cause="data"))
    synthetic_job.write_job(tmp_path / "other", Spec(**knobs, straggler=2, cause="sync"))
    (tmp_path / "other" / "rank2.json.gz").replace(tmp_path / "job" / "rank2.json.gz")
    (read,) = read_traces([str(tmp_path / "job")], cache=False, jobs=1)
    report = run(read.ledger)
    warned = {finding.kind: finding for finding in report.findings if finding.severity == "warning"}
    for kind in ("data-stall", "host-sync"):
        alone_ns = warned[kind].saving_ns
        assert alone_ns is not None
        assert alone_ns < MS // 10
