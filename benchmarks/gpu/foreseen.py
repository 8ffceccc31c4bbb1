"""Dry runs of the models that `models` has measured, and how far they are off.

Each runs as `shardtoll dryrun` on the CPU. `dry_run.csv` has a row per case that was measured: step time and
peak bytes of tensors, measured and foreseen, the errors in percent, and whether the measured time lies in the
forecast's band. In rehearsal the measurements are those of a CPU, so that the errors say nothing.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from gpu.place import Place, part
from gpu.sheet import Sheet
from shardtoll.analyzers.roofline import find_gpu
from shardtoll.ledger.records.one_line import shortened

LIMIT_S: Final = 50.0
REHEARSED_AS: Final = "h100-sxm"
SCRIPT: Final = Path(__file__).with_name("train.py")
_SAID_MOST: Final = 200


@dataclass(frozen=True, slots=True)
class Row:
    """One case; what is None is not known."""

    model: str
    variant: str
    status: str
    step_s: float | None = None
    foreseen_step_s: float | None = None
    step_error_percent: float | None = None
    in_band: bool | None = None
    allocated_bytes: int | None = None
    foreseen_allocated_bytes: int | None = None
    allocated_error_percent: float | None = None
    reserved_bytes: int | None = None
    foreseen_reserved_bytes: int | None = None
    """Without CUDA's context and communicators, as torch counts them."""
    reserved_error_percent: float | None = None
    reserved_in_band: bool | None = None


def card_name(place: Place) -> str | None:
    """Return the card by the name that forecasts know it by; None for one that they do not know."""
    if place.rehearses:
        return REHEARSED_AS
    found = find_gpu(torch.cuda.get_device_name())
    return None if found is None else found.name


def dry(card: str, deadline_s: float, measured: dict[str, str]) -> Row:
    """Run one case dry and return its row."""
    name, variant = measured["model"], measured["variant"]
    command = [sys.executable, "-m", "shardtoll.cli", "dryrun", "--world", "1", "--gpu", card, "--json"]
    try:
        done = subprocess.run(
            [*command, str(SCRIPT), name, variant, measured["dtype"]],
            capture_output=True,
            text=True,
            timeout=max(1.0, deadline_s - time.monotonic()),
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Row(name, variant, "too late")
    if done.returncode != 0:
        return Row(name, variant, shortened(done.stderr.strip().rpartition("\n")[2], _SAID_MOST))
    return _row(measured, json.loads(done.stdout.strip().rpartition("\n")[2]))


def _row(measured: dict[str, str], step: dict[str, Any]) -> Row:
    step_s = float(measured["step_s"])
    allocated = int(measured["allocated_bytes"]) if measured["allocated_bytes"] else None
    reserved = int(measured["reserved_bytes"]) if measured["reserved_bytes"] else None
    band, memory = step["step_ns"], int(step["memory"]["allocated_bytes"])
    held, outside = step["memory"]["reserved_bytes"], step["memory"]["outside_bytes"]
    foreseen = int(held["expected"]) - outside
    return Row(
        measured["model"],
        measured["variant"],
        "ran",
        step_s,
        band["expected"] / 1e9,
        100 * (band["expected"] / 1e9 / step_s - 1),
        band["low"] <= step_s * 1e9 <= band["high"],
        allocated,
        memory,
        None if allocated is None else 100 * (memory / allocated - 1),
        reserved,
        foreseen,
        None if reserved is None else 100 * (foreseen / reserved - 1),
        None if reserved is None else held["low"] <= reserved + outside <= held["high"],
    )


def measure(sheet: Sheet, place: Place, out: Path) -> None:
    """Run dry whatever was measured, several at a time, and write the table."""
    table = out / "models.csv"
    if not table.exists():
        sheet.check("models were measured", False, True)
        return
    with table.open(encoding="utf-8") as file:
        cases = [row for row in csv.DictReader(file) if row["status"] == "ran"]
    card = card_name(place)
    if card is None:
        sheet.note(f"forecasts do not know {torch.cuda.get_device_name()}: nothing was run dry")
        return
    sheet.figure("card", card)
    deadline_s = time.monotonic() + (4 * LIMIT_S if place.rehearses else LIMIT_S)
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        rows = list(pool.map(partial(dry, card, deadline_s), cases))
    with (out / "dry_run.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(map(asdict, rows))
    for row in rows:
        sheet.figure(f"{row.model} {row.variant}", asdict(row))
    for name in ("step_error_percent", "allocated_error_percent", "reserved_error_percent"):
        errors = [abs(error) for row in rows if (error := getattr(row, name)) is not None]
        sheet.figure(f"median_{name}", statistics.median(errors) if errors else None)
    ran = sum(row.status == "ran" for row in rows if row.variant != "compile")
    wanted = sum(case["variant"] != "compile" for case in cases)
    sheet.check("dry runs of the models as they are and recomputed", ran, wanted)


if __name__ == "__main__":
    part("foreseen", measure, __doc__ or "")
