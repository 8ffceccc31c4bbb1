"""How wide the band of a plan's price is: by what decides its time, and by what the plan does not state."""

from __future__ import annotations

from collections.abc import Mapping

from shardtoll.analyzers.forecast.plan.constants import widths
from shardtoll.analyzers.forecast.plan.parts import Parts
from shardtoll.analyzers.forecast.plan.traits import traits_of
from shardtoll.ledger.answers.training_plan import TrainingPlan


def half_width(plan: TrainingPlan, parts: Parts) -> tuple[float, float]:
    """Return the logarithms of how far the step may be faster and slower than expected."""
    numbers = widths()
    more = slope_width(parts, numbers)
    return _side("faster", plan, numbers) + more, _side("slower", plan, numbers) + more


def _side(name: str, plan: TrainingPlan, numbers: Mapping[str, float]) -> float:
    fitted = numbers.get(f"{name}.{band_scope(plan)}")
    if fitted is not None:
        return fitted
    return numbers[name] + (numbers["experts"] if plan.model.experts > 1 else 0.0)


def band_scope(plan: TrainingPlan) -> str:
    """Return whose errors the plan's band goes by: its framework's, those of experts apart."""
    framework = traits_of(plan.framework).name
    return f"{framework}.experts" if plan.model.experts > 1 else framework


def slope_width(parts: Parts, numbers: Mapping[str, float]) -> float:
    """Return the part of the width that grows with what is uncertain: host time, network, waits."""
    step = max(parts.step_ns, 1.0)
    exposed = (sum(parts.exposed_ns.values()) + parts.bubble_ns) / step
    width = numbers["host"] * parts.host_ns / step + numbers["net"] * parts.net_ns / step
    return width + numbers["exposed"] * exposed
