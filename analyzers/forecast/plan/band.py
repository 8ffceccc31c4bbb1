"""How wide the band of a plan's price is: by what decides its time, and by what the plan does not state."""

from __future__ import annotations

from shardtoll.analyzers.forecast.plan.constants import widths
from shardtoll.analyzers.forecast.plan.parts import Parts
from shardtoll.analyzers.forecast.plan.traits import traits_of
from shardtoll.ledger.answers.training_plan import TrainingPlan


def half_width(plan: TrainingPlan, parts: Parts) -> tuple[float, float]:
    """Return the logarithms of how far the step may be faster and slower than expected."""
    numbers = widths()
    step = max(parts.step_ns, 1.0)
    host, net = parts.host_ns / step, parts.net_ns / step
    exposed = (sum(parts.exposed_ns.values()) + parts.bubble_ns) / step
    base = numbers.get(f"base.{traits_of(plan.framework).name}", numbers["base"])
    width = base + numbers["host"] * host + numbers["net"] * net + numbers["exposed"] * exposed
    if plan.model.experts > 1:
        width += numbers["experts"]
    return width * numbers["faster"], width * numbers["slower"]
