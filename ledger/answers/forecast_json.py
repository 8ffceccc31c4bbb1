"""Forecasts as JSON values, schema version 1: null if unknown."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from shardtoll.ledger.answers.forecast import Band, PricedRow, RowsForecast, Scaling

SCHEMA_VERSION: Final = 1


def rows_to_json(answer: RowsForecast) -> dict[str, Any]:
    """Return `{schema_version, rows, scores, weak_scaling, calibration, notes}`.

    A row's `predicted`, `low` and `high` are in the unit of its `metric`. The unit is s for iter_s and
    step_s, per cent for MFU, else tokens/s/GPU.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "calibration": answer.calibration,
        "rows": [_row(row) for row in answer.rows],
        "scores": [asdict(scores) for scores in answer.scores],
        "weak_scaling": asdict(answer.weak_scaling),
        "notes": list(answer.notes),
    }


def _row(row: PricedRow) -> dict[str, Any]:
    own = _own_unit(row)
    return {
        "row": row.number,
        "group": row.group,
        "model": row.model,
        "gpu": row.gpu,
        "gpus": row.gpus,
        "metric": row.metric,
        "predicted": own and own.expected,
        "low": own and own.low,
        "high": own and own.high,
        "reason": row.reason,
        "step_s": _band(row.step_s),
        "tok_s_gpu": _band(row.tok_s_gpu),
        "mfu": _band(row.mfu),
        "exposed_share": row.exposed_share,
        "memory_gib": _band(row.memory_gib),
        "fits": row.fits,
        "assumed": list(row.assumed),
        "replaced": list(row.replaced),
        "calibrated_on": row.calibrated_on,
        "measured_step_s": row.measured_step_s,
        "measured_memory_gib": row.measured_memory_gib,
        "error": row.error,
        "within": row.within,
    }


def _own_unit(row: PricedRow) -> Band | None:
    if row.metric in ("iter_s", "step_s"):
        return row.step_s
    if row.metric.casefold().startswith("mfu"):
        return row.mfu and row.mfu.scaled(100)
    return row.tok_s_gpu


def _band(band: Band | None) -> dict[str, float] | None:
    return None if band is None else {"expected": band.expected, "low": band.low, "high": band.high}


def scaling_to_json(answer: Scaling) -> dict[str, Any]:
    """Return `{schema_version, run, fabric, gpu, world, measured, base_world, asked, weak, ...}`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run": answer.run,
        "gpu": {"from": answer.gpu_before, "to": answer.gpu},
        "fabric": {"from": answer.fabric_before, "to": answer.fabric},
        "world": answer.world,
        "measured": {"world": answer.measured_world, "step_ns": answer.measured_step_ns},
        "base_world": answer.base_world,
        "strong_base_world": answer.strong_base_world,
        "asked": {"weak": _point(answer.asked("weak")), "strong": _point(answer.asked("strong"))},
        "weak": [_point(point) for point in answer.weak],
        "strong": [_point(point) for point in answer.strong],
        "calibration": answer.calibration,
        "notes": list(answer.notes),
    }


def _point(point: Any) -> dict[str, Any] | None:
    if point is None:
        return None
    return {
        "world": point.world,
        "step_ns": _band(point.step_ns),
        "compute_ns": point.compute_ns,
        "exposed_ns": dict(point.exposed_ns),
        "other_ns": point.other_ns,
        "efficiency": _band(point.efficiency),
    }
