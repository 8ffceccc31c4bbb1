"""Options of a dry run: the job it plays and how much of it is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardtoll.ledger.answers.dry_step import DryMachine
from shardtoll.profiler.dryrun.device.values import Policy
from shardtoll.profiler.dryrun.device.world import World


@dataclass(frozen=True, slots=True)
class DryOptions:
    """The job that a dry run plays and how much of it is recorded."""

    world: World
    machine: DryMachine
    steps: int = 1
    """Steps that are recorded, after the first one, which builds the optimizer's state."""
    policy: Policy = field(default_factory=Policy)
    stop: bool = False
    """Whether the program is ended once they are recorded."""
