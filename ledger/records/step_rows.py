"""All records of one step together. Records know no such sum, so that their files import in one direction."""

from __future__ import annotations

from dataclasses import dataclass

from shardtoll.ledger.records.event import DeviceOp, Event
from shardtoll.ledger.records.record import Collective, Compute, Count, Notice, Step
from shardtoll.ledger.records.stall import Leadup, Stall
from shardtoll.ledger.records.value import Parameter, Value


@dataclass(frozen=True, slots=True)
class StepRows:
    """All rows that one rank recorded in one step; a store appends them at once."""

    step: Step | None
    """None: records from outside every step."""
    collectives: tuple[Collective, ...] = ()
    computes: tuple[Compute, ...] = ()
    counts: tuple[Count, ...] = ()
    notices: tuple[Notice, ...] = ()
    leadups: tuple[Leadup, ...] = ()
    stalls: tuple[Stall, ...] = ()
    values: tuple[Value, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    device_ops: tuple[DeviceOp, ...] = ()
    events: tuple[Event, ...] = ()
