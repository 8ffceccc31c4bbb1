"""Result of replaying a step with changes: the step before and after, fix by fix, with bands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from shardtoll.ledger.foreign.plain import to_plain

WHAT_IF_VERSION: Final = 1

WITHOUT_CAPTURE: Final = (
    "These times leave out what recording took; `shardtoll report --show steps` names it capture."
)
"""Shown wherever a report's own steps, which include recording, may stand near these times."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A step on its slowest rank, mean over the replayed steps; the parts add up to `step_ns`."""

    step_ns: int
    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    rest_ns: int
    """Idle, and time that no record explains."""


@dataclass(frozen=True, slots=True)
class RankParts:
    """The same of one rank, before and after."""

    rank: int
    before: Parts
    after: Parts


@dataclass(frozen=True, slots=True)
class Change:
    """One change to the step, and its saving."""

    label: str
    """The change to the step, as `without these all_gathers`."""
    number: int | None
    """Number of the finding on the bill; None for a change that was asked for by itself."""
    kind: str | None
    title: str | None
    toll_ns: int | None
    saving_ns: int
    """Saving of this change alone, per step; negative if the step becomes longer."""
    low_ns: int
    high_ns: int
    """Ends of its band."""
    step_ns: int
    """The step after this change and all before it."""


@dataclass(frozen=True, slots=True)
class PathPart:
    """A part of the job's critical path, per step."""

    what: str
    """A kind of work, as `compute`, or of gap."""
    name: str
    phase: str
    ns: int
    share: float
    """Share of the path."""
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Path:
    """The chain of work and gaps that the job's time consists of: shortening anything else saves nothing."""

    step_ns: int
    """Its length per step: that of the step on its slowest rank."""
    parts: tuple[PathPart, ...]
    unknown_share: float
    """The part of it that is gaps which no record explains."""
    hops: int
    """How often per step it goes on to another rank."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """A report's prediction for its own findings, by replay."""

    source: str
    """`events`: launches, streams and waits of a trace. `points`: collectives and own time between them."""
    steps: tuple[int, ...]
    nodes: int
    replay_error: float
    """Largest difference between replayed and recorded time of a step and rank, as a share."""
    unknown_share: float
    before: Parts
    changes: tuple[Change, ...]
    """Findings whose remedy can be replayed, in the order of the bill, each on top of those before."""
    floor_ns: int | None
    """The step with these changes and every collective at the least that the fabric allows."""
    path: Path
    tried: int | None = None
    """How many findings with a toll were tried, the first of the bill; None in earlier versions' reports."""
    without_capture: bool = False
    """Whether these times leave out what recording took, which the report's steps hold."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Answer of `shardtoll whatif`."""

    run: str
    source: str
    steps: tuple[int, ...]
    ranks_seen: int
    nodes: int
    replay_error: float
    unknown_share: float
    before: Parts
    after: Parts
    saving_ns: int
    saving_low_ns: int
    saving_high_ns: int
    changes: tuple[Change, ...]
    ranks: tuple[RankParts, ...]
    vanished: tuple[str, ...]
    """Findings of the bill that the changed step does not have."""
    appeared: tuple[str, ...]
    path: Path
    """Critical path of the step after."""
    notes: tuple[str, ...] = ()
    """Assumptions of the prediction, and what it leaves out."""
    slowest_before: int = 0
    """Rank whose parts `before` are."""
    slowest_after: int = 0
    """Rank whose parts `after` are; the same one if it lasts as long as any other, to a thousandth."""


def what_if_to_json(answer: WhatIf) -> dict[str, Any]:
    """Return it as JSON values."""
    return {"schema_version": WHAT_IF_VERSION, **to_plain(answer)}
