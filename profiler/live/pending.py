"""What is kept of a collective and of an operator while the step still runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardtoll.profiler.accounting import Interval


@dataclass(slots=True)
class Place:
    """Where an operator came from, in the ledger's words."""

    phase: str
    module: str | None = None
    parameter: str | None = None
    source: str | None = None
    caused_by_op: str | None = None
    implicit: bool = False
    placements_from: str | None = None
    placements_to: str | None = None


@dataclass(slots=True)
class PendingCollective:
    """One collective as it was issued; times are monotonic ns."""

    op: str
    group: str
    group_size: int
    dtype: str | None
    message_bytes: int | None
    wire_bytes: int | None
    reduce_op: str | None
    root: int | None
    place: Place
    issue_ns: int
    seq: int | None = None
    growth: int = 0
    """By how much the call made the group's sequence number grow: measured over it, but never more than its
    operator is known for, lest the collective of somebody else who cut in be taken for accounted for."""
    tickets: list[int] | None = None
    """Fingerprint tickets of its inputs; None where an input has no fingerprint."""


@dataclass(slots=True)
class PendingCompute:
    """One matmul-like operator; times are monotonic ns."""

    op: str
    flops: int
    shapes: str
    place: Place
    start_ns: int
    end_ns: int
    replicated_over: str | None
    input_tickets: list[int] | None
    output_tickets: list[int] | None


@dataclass(slots=True)
class Wait:
    """The training thread blocked from `start_ns` to `end_ns`; `owner` indexes the collective, if known."""

    start_ns: int
    end_ns: int
    owner: int | None = None


@dataclass(slots=True)
class Region:
    """Everything seen between two moments: a step, or the time outside steps."""

    step: int | None
    start_ns: int
    sequence_at_start: dict[str, int | None]
    light: bool = False
    """Only collectives are noted: between steps, which may last for as long as a validation run does."""
    collectives: list[PendingCollective] = field(default_factory=list)
    elsewhere: list[PendingCollective] = field(default_factory=list)
    """Collectives that other threads issued."""
    computes: list[PendingCompute] = field(default_factory=list)
    operators: list[Interval] = field(default_factory=list)
    """Times in which an operator ran."""
    copies: list[Interval] = field(default_factory=list)
    """Times in which a copy between devices ran."""
    capture: list[Interval] = field(default_factory=list)
    """Times in which the capture itself worked."""
    excluded: list[Interval] = field(default_factory=list)
    """Times that are no part of the step: the gradient check, which the user asked for in its midst."""
    waits: list[Wait] = field(default_factory=list)
    drains: list[Interval] = field(default_factory=list)
    """Times in which C++ may wait for collectives unseen by Python: DDP's reducer at the end of backward
    and around its broadcasts; and times spent waiting for a future, whatever it is a future of. Blocked
    only while a collective is in flight."""
    uncounted: dict[str, int] = field(default_factory=dict)
    """Growth of sequence numbers that was our own or the gradient check's."""
