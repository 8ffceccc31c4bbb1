"""What is kept of a collective and of an operator while the step still runs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

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
    operand: str | None = None
    """Which argument of the operator DTensor moved."""
    of_values: bool | None = None
    """Whether the tensors are the parameter's values, and not its gradient."""
    by_tensor: bool = False
    """The parameter's name was found by the tensor itself: another one may stand there in the next step."""
    by_node: bool = False
    """Module or line are those of the forward that made the autograd node which ran."""

    @property
    def waits_in_cpp(self) -> bool:
        """Whether C++ waits for it, at the end of backward: it is DDP's."""
        return (self.caused_by_op or "").startswith("DistributedDataParallel")


NOWHERE: Final = Place("other")
"""The place of a collective that has none yet."""


@dataclass(slots=True)
class Outcome:
    """What became of a collective's result, and what its input came from; None unknown."""

    ticket: int | None = None
    """Of the result's fingerprint."""
    used_bytes: int | None = None
    used_by: str | None = None
    cut_from: int | None = None
    """Ticket of the fingerprint of what the input is an equal part of."""


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
    key: tuple[Any, ...] | None = None
    """What tells its place in the step's sequence; None where C++ issued it, or the level does not ask."""
    outcome: Outcome | None = None
    optimizer_steps: int | None = None
    """How many steps of optimizers this rank had finished when it was issued."""
    gradients_begun: int | None = None
    """How many backwards had begun with cleared gradients when it was issued."""
    unseen: bool = False
    """It was counted, not seen: what it is comes from a surveyed step, and when it was issued is unknown."""
    group_rank: int | None = None
    """This rank's number in the group; None unknown."""


def growths(collectives: Iterable[PendingCollective]) -> dict[str, int]:
    """Return by how much these collectives made each group's sequence number grow."""
    found: dict[str, int] = {}
    for pending in collectives:
        found[pending.group] = found.get(pending.group, 0) + pending.growth
    return found


@dataclass(frozen=True, slots=True)
class UnseenAfter:
    """The last collective that C++ issued, unseen, right after `last`; that itself where there is none."""

    last: PendingCollective | None


@dataclass(slots=True)
class PendingCompute:
    """One operator whose FLOPs are counted, or all that optimizers do; times are monotonic ns."""

    op: str
    flops: int
    shapes: str
    place: Place
    start_ns: int
    end_ns: int
    replicated_over: str | None
    input_tickets: list[int] | None
    output_tickets: list[int] | None
    telling: tuple[int, ...] = ()
    """Tickets of its data: where one of them holds one value throughout, equality proves nothing."""
    moved_bytes: int = 0
    """Least bytes read and written."""


@dataclass(slots=True)
class Wait:
    """The training thread blocked from `start_ns` to `end_ns`; `owner` indexes the collective, if known."""

    start_ns: int
    end_ns: int
    owner: int | None = None


@dataclass(slots=True)
class Fetch:
    """The training thread fetched from a DataLoader; times are monotonic ns."""

    start_ns: int
    end_ns: int
    name: str
    source: str | None
    batch: bool
    """A batch came of it: neither the loader's start nor its end."""


@dataclass(slots=True)
class Before:
    """What happened between the step before and this one."""

    fetches: list[Fetch] = field(default_factory=list)
    other_ns: int = 0
    """The rest of the time: neither fetching nor blocked on collectives. 0 before the first step."""


@dataclass(slots=True)
class Reads:
    """What the host read of tensors at one place, as `.item()` does."""

    name: str
    phase: str
    module: str | None
    source: str | None
    count: int = 0
    read_ns: int = 0
    blocked_ns: int = 0
    """Blocked on collectives whose results were read; not in `read_ns`."""


@dataclass(slots=True)
class Region:
    """Everything seen between two moments: a step, or the time outside steps."""

    step: int | None
    start_ns: int
    sequence_at_start: dict[str, int | None]
    fake: bool = False
    """Operators of the step ran on fake tensors, which have sizes but no values."""
    light: bool = False
    """Only collectives are noted: between steps, which may last for as long as a validation run does."""
    watched: bool = False
    """Only collectives are noted, where Python issues them."""
    reducers: list[int] = field(default_factory=list)
    """What tells DDP's reducers apart that were made ready for a backward, in order."""
    moved: bool = False
    """Some collective of a watched step has another place than the surveyed one that it repeats."""
    graphs: list[int] = field(default_factory=list)
    """What tells the graphs of its backwards apart, in order: which parameters they reach; of a watched
    region only where a sequence is known by it."""
    backward_ran: bool = False
    """Whether a backward has ended in it."""
    node_base: int = 0
    """The number that the next autograd node had when the region began."""
    collectives: list[PendingCollective] = field(default_factory=list)
    elsewhere: list[PendingCollective] = field(default_factory=list)
    """Collectives that other threads issued."""
    computes: list[PendingCompute] = field(default_factory=list)
    updates: PendingCompute | None = None
    """The one of them that stands for all that optimizers do; None before any has stepped."""
    ran: array[int] = field(default_factory=lambda: array("q"))
    """Four times for each operator but collectives and waits: capture began, the operator began and ended,
    capture ended. Flat, because nearly all that a step keeps is this."""
    copies: list[Interval] = field(default_factory=list)
    """Times in which a copy between devices ran."""
    capture: list[Interval] = field(default_factory=list)
    """Times in which the capture itself worked, those around operators in `ran` left out."""
    excluded: list[Interval] = field(default_factory=list)
    """Times that are no part of the step: the gradient check, which the user asked for in its midst."""
    waits: list[Wait] = field(default_factory=list)
    drains: list[Interval] = field(default_factory=list)
    """Times in which C++ may wait for collectives unseen by Python: DDP's reducer at the end of backward
    and around its broadcasts; and times spent waiting for a future, whatever it is a future of. Blocked
    only while a collective is in flight."""
    fetches: list[Fetch] = field(default_factory=list)
    before: Before = field(default_factory=Before)
    reads: dict[tuple[int, int], Reads] = field(default_factory=dict)
    """By code and instruction of the caller."""
    uncounted: dict[str, int] = field(default_factory=dict)
    """Growth of sequence numbers that was our own or the gradient check's."""
