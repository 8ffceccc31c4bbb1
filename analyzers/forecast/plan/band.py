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
    framework = traits_of(plan.framework).name
    more = slope_width(plan, parts, numbers)
    faster = numbers.get(f"faster.{framework}", numbers["faster"])
    slower = numbers.get(f"slower.{framework}", numbers["slower"])
    return faster + more, slower + more


def slope_width(plan: TrainingPlan, parts: Parts, numbers: Mapping[str, float]) -> float:
    """Return the part of the width that grows with what is uncertain: host time, network, waits, experts."""
    step = max(parts.step_ns, 1.0)
    exposed = (sum(parts.exposed_ns.values()) + parts.bubble_ns) / step
    width = numbers["host"] * parts.host_ns / step + numbers["net"] * parts.net_ns / step
    width += numbers["exposed"] * exposed
    return width + (numbers["experts"] if plan.model.experts > 1 else 0.0)
