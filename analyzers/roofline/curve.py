"""Times of one collective as they were measured, by message size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What one message size took: the typical time and the interval that held 90 % of the samples."""

    message_bytes: int
    """As nccl-tests counts them; 0 for a barrier."""
    time_ns: int
    """Median of the samples."""
    low_ns: int
    """Equal to `time_ns` where there is one sample."""
    high_ns: int
    samples: int = 1


@dataclass(frozen=True, slots=True)
class Curve:
    """One op between `ranks` ranks on `nodes` hosts, sorted by message size."""

    op: str
    """One of `ledger.volume.OPS`."""
    ranks: int
    nodes: int
    points: tuple[CurvePoint, ...]
    source: str
    """Where and when it was measured."""
