"""A step's time by what it consists of, before any band."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parts:
    """A step's time and what it consists of, in ns, before any band."""

    step_ns: float
    compute_ns: float
    exposed_ns: dict[str, float]
    bubble_ns: float
    optimizer_ns: float
    host_ns: float
    """Part of the step that the host decides."""
    net_ns: float
    """Part of the exposed time whose collectives span nodes."""
