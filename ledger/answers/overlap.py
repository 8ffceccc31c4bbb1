"""Findings about the same time, so that their tolls or savings do not add up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Overlap:
    """Findings whose tolls hold time of the same collectives, or whose fixes save the same time."""

    findings: tuple[int, ...]
    """Their numbers on the bill, which counts from 1."""
    most_ns: int
    """Their cost together per step, at most, on the rank with the highest cost. With `saved`: the time they
    save together."""
    saved: bool = False
    """Whether `most_ns` is what they save together, and not what they cost."""

    def __post_init__(self) -> None:
        if len(self.findings) < 2 or min(self.findings) < 1 or self.most_ns < 0:
            raise ValueError(f"findings {self.findings} cannot overlap in {self.most_ns} ns")
