"""Bytes that a step sends, by operation and group: records."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """The collectives of one operation over one kind of group, per step.

    Each figure is a rank's mean over the finished steps, on the rank where that is largest; None if unknown.
    """

    op: str
    group: str | None
    """The group's name; None if several groups have the mesh dimension."""
    mesh_dim: str | None
    group_size: int
    calls: float
    """On the rank that has most; below 1 if a step has none at times."""
    message_bytes: int | None
    wire_bytes: int | None
    exposed_ns: int | None
    floor_ns: int | None
    expected_ns: int | None = None

    def __post_init__(self) -> None:
        figures = (self.message_bytes, self.wire_bytes, self.exposed_ns, self.floor_ns, self.expected_ns)
        if not 0 < self.calls < math.inf or any(figure is not None and figure < 0 for figure in figures):
            raise ValueError(f"traffic of {self.op} holds {self.calls} calls and {figures}")


@dataclass(frozen=True, slots=True)
class SoundCheck:
    """A check that looked at what it needs, and found nothing wrong."""

    name: str
    """`gradients`, `reference`, `norms`, `replicas`, `data` or `completeness`."""
    steps: tuple[int, ...] = ()
    """The steps that it looked at; none if it is about the whole run."""
    groups: int | None = None
    """Groups whose own number of collectives agrees with the record; of `completeness` only."""
