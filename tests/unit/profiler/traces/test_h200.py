"""Recordings of torch 2.11 on an H200 (`make gpu`, 2026-11-27), held against their kernels by brute force."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardtoll.analyzers import run
from shardtoll.profiler.traces import read_traces

FOLDER = Path(__file__).resolve().parents[3] / "data" / "h200"
TICK_US = 0.5


def busy_us(events: list[dict[str, Any]], begin: float, end: float) -> float:
    """The time that kernels ran between two instants, counted in ticks."""
    ticks = np.zeros(int((end - begin) / TICK_US) + 1, dtype=bool)
    for event in events:
        first, last = (event["ts"] - begin) / TICK_US, (event["ts"] + event["dur"] - begin) / TICK_US
        if last > 0:
            ticks[max(0, round(first)) : max(0, round(last))] = True
    return float(ticks.sum()) * TICK_US


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "recompute"])
def test_steps_compute_for_as_long_as_their_kernels_run(kind: str) -> None:
    path = FOLDER / f"{kind}.rank0.json.gz"
    (job,) = read_traces([str(path)], jobs=1, cache=False)
    steps = job.ledger.tables["steps"].to_pylist()
    assert len(steps) == 2
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    marks = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and str(event["name"]).startswith("ProfilerStep#")
    )
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert len(kernels) > 100
    assert len(marks) == 2
    for step, (begin, end) in zip(steps, marks, strict=True):
        parts = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns")
        assert sum(step[part] for part in parts) == step["duration_ns"]
        assert step["duration_ns"] == pytest.approx(1e3 * (end - begin), rel=0.01)
        assert step["compute_ns"] == pytest.approx(1e3 * busy_us(kernels, begin, end), rel=0.02)
        # One rank alone sends nothing.
        assert step["exposed_comm_ns"] == 0
    report = run(job.ledger)
    assert report.headline is not None
    assert "launches kernels too slowly" in report.headline
