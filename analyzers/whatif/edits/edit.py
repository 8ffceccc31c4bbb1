"""A change to a step by name, and how sure its effect is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.whatif.edits.draft import Draft

Apply = Callable[[Draft, float], None]
"""Writes the change to a draft. The number says how the change turns out. 0: as expected; -1: the low end of
its model's band, with the least saving; 1: the high end."""

Beyond = Callable[[Recorded, float, float], float]
"""Given the steps, the toll in ns and the end of the band: ns per step that it may save beyond the toll."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change."""

    label: str
    """As `without these all_gathers`."""
    apply: Apply
    banded: bool = False
    """Whether -1 and 1 differ from 0: a model stands behind it."""
    number: int | None = None
    """Number of the finding that it stands for."""
    most_ns: float | None = None
    """The upper bound that its finding has on the bill, per step: with `beyond` it saves at most both. None
    if nothing bounds it."""
    in_stages: bool = False
    """Whether that bound counts each stage of a pipeline, so that it may be above the toll."""
    beyond: Beyond | None = None
    """Saving beyond that bound: costs that a toll leaves out, as the host's work for a collective."""
    more: str | None = None
    """Why it may save more than its finding's toll, as the end of a sentence."""
    missing: str | None = None
    """Missing part of the record if it changes nothing; None if no change is a valid answer."""
    as_recorded: bool = False
    """Whether it measures times of the record against each other, so that it comes before other edits."""
    overlaps: bool = False
    """Whether communication overlaps compute after it that it did not before: both take longer then."""
    note: str | None = None
    """Its assumptions, for the reader of the answer."""
