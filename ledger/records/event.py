"""Records that traces alone give: a rank's timeline with its waits, and sums of equal operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from shardtoll.ledger.records.record import PHASES

EventKind = Literal[
    "launch", "sync", "data", "message", "compute", "collective", "copy", "unclassified", "wait"
]

EVENT_KINDS: Final[tuple[str, ...]] = get_args(EventKind)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a rank, on a host thread or on a device stream.

    `launch`: a call that launches device work. `sync`: the part of a call in which the host waited for the
    device. `data`: the host fetched a batch. `message`: the host sent or received without device work, in a
    call that may have waited. `compute`, `collective`, `copy`, `unclassified`: device work.
    `wait`: a place in a stream at which it waits for another stream's work.
    """

    step: int | None
    rank: int
    index: int
    """Place among the rank's events, from 0."""
    kind: str
    name: str
    """Operator or kernel; empty if nothing names it."""
    phase: str
    stream: int | None
    """Device stream; None on the host."""
    thread: int | None
    """Host thread, numbered from 0; threads that take turns are one. None on a device."""
    start_ns: int
    duration_ns: int
    launch: int | None = None
    """Index of the call that launched it; None if unknown."""
    awaits: int | None = None
    """Index of the event that it waited for; None for none, or unknown."""
    collective: int | None = None
    """Position among this rank's rows of the collectives' table, from 0."""
    module: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in EVENT_KINDS:
            raise ValueError(f"unknown event kind {self.kind!r}")
        if self.phase not in PHASES:
            raise ValueError(f"unknown phase {self.phase!r}")
        for name in ("index", "duration_ns", "launch", "awaits", "collective"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} {value} < 0")


@dataclass(frozen=True, slots=True)
class DeviceOp:
    """Work of a rank's device for one operator, with one kind of inputs, in one step, as traces show it.

    The record without an operator holds the kernels that no operator on record launched.
    """

    step: int
    rank: int
    op: str | None
    """As the trace names it: `aten::mm`."""
    phase: str
    shapes: str | None
    """Input shapes as `bf16[64,32] bf16[32,16]`; None if not recorded (`record_shapes=True`)."""
    count: int
    """Calls that launched kernels."""
    device_ns: int
    """How long their kernels ran, summed; kernels side by side count each."""
    flops: int | None = None
    """FLOPs of all calls; None if the operator or its shapes are unknown."""
    moved_bytes: int | None = None
    """Least bytes that all calls must read and write, each operand once; None if unknown."""

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(f"unknown phase {self.phase!r}")
        for name in ("count", "device_ns", "flops", "moved_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} {value} < 0")
