"""The pipelines of a job, and the losses of each of their stages."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """Time that one rank of a pipeline loses in a mean step."""

    rank: int
    lost_ns: int
    """All of it; the parts are rounded, so they may differ from it by a nanosecond."""
    recv_ns: int
    """Exposed waiting in receives for the other end, beyond the transfer."""
    send_ns: int
    """The same in sends."""
    idle_ns: int
    """Idle inside the schedule, as far as a trace shows it."""


@dataclass(frozen=True, slots=True)
class Pipelines:
    """The pipelines of a job."""

    lines: tuple[tuple[int, ...], ...]
    """The ranks of each, in order of stages."""
    group_ids: tuple[int, ...]
    """Places among the report's groups of those that the stages' messages belong to."""
    micro_batches: int | None
    """Micro-batches of a step, counted from the sends of the first and last stages; None if these do not show
    it."""
    steps: tuple[int, ...]
    """The steps that the lost time is a mean over."""
    step_ns: int | None
    """Mean of those steps on the slowest rank, without capture's own work."""
    stages: tuple[Stage, ...]
    """By rank; only ranks of which something is on record."""

    def __post_init__(self) -> None:
        stages = [number for stage in self.stages for number in astuple(stage)]
        ranks = [rank for line in self.lines for rank in line]
        if min([*stages, *ranks, *self.group_ids, self.step_ns or 0]) < 0:
            raise ValueError("pipelines hold a negative number")
