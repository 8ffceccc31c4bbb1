"""Warnings whose fix saves hardly anything, or whose time is within the parts' error, are information."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from shardtoll.analyzers.findings.trust.small_warnings import as_infos
from shardtoll.ledger import Finding, Where

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
