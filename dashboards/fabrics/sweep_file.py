"""Evaluated sweeps as files: JSON for programs, a page for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardtoll.dashboards.fabrics import sweep_plot
from shardtoll.dashboards.fabrics.sweep_lines import ErrorLine, SizeLine, SweepLine, SweepTable
from shardtoll.dashboards.words.files import write as write_file

_ERRORS = (
    "band",
    "count",
    "median",
    "p90",
    "inside",
    "width",
    "noise_median",
    "noise_p90",
    "below_floor",
    "below_light",
)


def write_json(table: SweepTable, path: Path) -> list[Path]:
    """Write the JSON and return the files written; UsageError if that fails."""
    write_file(path, (to_json(table) + "\n").encode())
    return [path]


def write_html(table: SweepTable, path: Path) -> list[Path]:
    """Write the page and return the files written; UsageError if that fails."""
    write_file(path, sweep_plot.render(table).encode())
    return [path]


def to_json(table: SweepTable) -> str:
    """Return `{sweeps: [{file, fabric, mode, points: [{bytes, measured_us, ...}], ...}], totals}`."""
    document = {
        "sweeps": [_sweep(sweep) for sweep in table.sweeps],
        "totals": {mode: _errors(errors) for mode, errors in table.totals},
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _sweep(sweep: SweepLine) -> dict[str, Any]:
    return {
        "file": sweep.file,
        "fabric": sweep.fabric,
        "mode": sweep.mode,
        "points": [_size(size) for size in sweep.sizes],
        "hardware": sweep.hardware,
        "op": sweep.op,
        "nodes": sweep.nodes,
        "ranks": sweep.ranks,
        "fabric_choice": sweep.sure,
        "calibrated_on": list(sweep.on),
        "fitted_bytes": [size.message_bytes for size in sweep.fitted],
        "reason": sweep.reason,
        "alone": sweep.alone,
        "guesses": list(sweep.guesses),
        "errors": _errors(sweep.errors),
    }


def _size(size: SizeLine) -> dict[str, Any]:
    return {
        "bytes": size.message_bytes,
        "measured_us": _us(size.measured_ns),
        "predicted_us": _us(size.predicted_ns),
        "expected_us": _us(size.predicted_ns),
        "low_us": _us(size.low_ns),
        "high_us": _us(size.high_ns),
        "floor_us": _us(size.floor_ns),
        "light_us": _us(size.light_ns),
        "algorithm": size.algorithm,
        "protocol": size.protocol,
        "basis": size.basis,
    }


def _errors(errors: tuple[ErrorLine, ...]) -> list[dict[str, Any]]:
    return [{name: getattr(line, name) for name in _ERRORS} for line in errors]


def _us(ns: float | None) -> float | None:
    # To the thousandth of a ns: the multiplication by 1e3 and back adds error beyond that.
    return None if ns is None else round(ns / 1e3, 6)
