"""Dry runs of models that ran on an H200: peak memory is theirs (benchmarks/results/gpu-h200)."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks" / "results" / "gpu-h200" / "models.csv"

pytestmark = pytest.mark.live


@pytest.mark.parametrize(
    ("model", "variant", "within"),
    [
        ("125M", "plain", 0.01),
        ("760M", "recompute", 0.05),
        # So small that one choice of the allocator's decides: the worst of all cases.
        ("125M", "recompute", 0.21),
    ],
)
def test_peak_memory_is_what_the_card_measured(model: str, variant: str, within: float) -> None:
    with MEASURED.open(encoding="utf-8") as file:
        rows = {(each["model"], each["variant"]): each for each in csv.DictReader(file)}
    row = rows[model, variant]
    command = [sys.executable, "-m", "shardtoll.cli", "dryrun", "--world", "1", "--gpu", "h200-sxm", "--json"]
    done = subprocess.run(
        [*command, str(ROOT / "benchmarks" / "gpu" / "train.py"), model, variant, "bfloat16"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT / "benchmarks"), "OMP_NUM_THREADS": "1"},
        check=True,
    )
    memory = json.loads(done.stdout.strip().rpartition("\n")[2])["memory"]
    assert memory["allocated_bytes"] == pytest.approx(int(row["allocated_bytes"]), rel=0.001)
    reserved = memory["reserved_bytes"]["expected"] - memory["outside_bytes"]
    assert reserved == pytest.approx(int(row["reserved_bytes"]), rel=within)
