"""A published row's measurement, as the time of one step."""

from __future__ import annotations

from collections.abc import Mapping

from shardtoll.ledger.answers.training_plan import TrainingPlan


def measured_step_ns(row: Mapping[str, str], plan: TrainingPlan) -> float | None:
    """Return the measured time of one step: from the step time, else from tokens/s/GPU; None if neither is
    there."""
    step = _positive(row.get("step_s"))
    if step is None and row.get("metric") in ("iter_s", "step_s"):
        step = _positive(row.get("value"))
    if step is not None:
        return 1e9 * step
    rate = _positive(row.get("tok_s_gpu"))
    if rate is None and row.get("metric") == "tps_per_gpu":
        rate = _positive(row.get("value"))
    return None if rate is None else 1e9 * plan.tokens / plan.layout.world_size / rate


def _positive(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value > 0 else None


def measured_memory_gib(row: Mapping[str, str]) -> float | None:
    """Return the measured peak memory in GiB; None if the row has none."""
    return _positive(row.get("mem_gib"))
