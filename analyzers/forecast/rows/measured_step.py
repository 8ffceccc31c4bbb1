"""A published row's measurement, as the time of one step."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from shardtoll.ledger.answers.training_plan import TrainingPlan

_LEAST_S: Final = 1e-6
_MOST_S: Final = 1e7
"""Steps outside of these are slips of the pen: one launch takes longer, and four months are no step."""


def measured_step_ns(row: Mapping[str, str], plan: TrainingPlan) -> float | None:
    """Return the measured time of one step: from the step time, else from tokens/s/GPU.

    None if neither is there, or if no step takes that long or that short.
    """
    step = _positive(row.get("step_s"))
    if step is None and row.get("metric") in ("iter_s", "step_s"):
        step = _positive(row.get("value"))
    if step is None:
        rate = _positive(row.get("tok_s_gpu"))
        if rate is None and row.get("metric") == "tps_per_gpu":
            rate = _positive(row.get("value"))
        step = None if rate is None else plan.tokens / plan.layout.world_size / rate
    return 1e9 * step if step is not None and _LEAST_S <= step <= _MOST_S else None


def _positive(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < inf else None


def measured_memory_gib(row: Mapping[str, str]) -> float | None:
    """Return the measured peak memory in GiB; None if the row has none."""
    return _positive(row.get("mem_gib"))
