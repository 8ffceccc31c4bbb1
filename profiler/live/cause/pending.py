"""Facts about a collective and an operator, kept while the step still runs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from shardtoll.ledger.records.ddp_causes import DDP
from shardtoll.ledger.records.value import Value
from shardtoll.profiler.live.cause.accounting import Interval


@dataclass(slots=True)
class Place:
    """The origin of an operator, in the ledger's words."""

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
    library: str | None = None
    """Frame of an installed library that the line at `source` called, and that ran the operator."""
    of_values: bool | None = None
    """Whether the tensors are the parameter's values, and not its gradient."""
    reshards: bool | None = None
    """For FSDP2's gather: whether the gathered parameters are freed after forward."""
    by_tensor: bool = False
    """The parameter's name was found by the tensor itself: another one may stand there in the next step."""
    by_node: bool = False
    """Module or line are those of the forward that made the autograd node which ran."""
    kind: Any = field(default=None, compare=False, repr=False)
    """The flight file's entry for calls made here, kept here as every call asks for it."""

    @property
    def waits_in_cpp(self) -> bool:
        """Whether C++ waits for it, at the end of backward: it is DDP's."""
        return (self.caused_by_op or "").startswith(DDP)


NOWHERE: Final = Place("other")
"""The place of a collective that has none yet."""


@dataclass(frozen=True, slots=True)
class Message:
    """The facts of a call by itself: the same whenever it is made with arguments like these."""

    op: str
    group: str
    group_size: int
    dtype: str | None = None
    message_bytes: int | None = None
    wire_bytes: int | None = None
    reduce_op: str | None = None
    root: int | None = None
    group_rank: int | None = None
    """This rank's number in the group; None if unknown."""
    received_bytes: int | None = None
    """Bytes that this rank gets in an all_to_all; None for all else, and if unknown."""


@dataclass(slots=True)
class Surveyed:
    """Facts about a collective that only a surveyed step has; None if unknown. Tickets are those of
    fingerprints."""

    input_tickets: list[int] | None = None
    """Tickets of its inputs; None if an input has no fingerprint."""
    output_ticket: int | None = None
    cut_from_ticket: int | None = None
    """Ticket of the tensor that the input is an equal part of."""
    used_bytes: int | None = None
    used_by: str | None = None
    read_ticket: int | None = None
    """Ticket of the part of a gather's result that was read first, in the order of its elements."""
    read_dimension: int | None = None
    read_carries_gradient: bool | None = None
    loss_classes: int | None = None
    """For a gather along the classes of logits: how many `F.cross_entropy` read, which are all."""
    input_content: int | None = None
    output_content: int | None = None
    cut_from_content: int | None = None
    cut_by_placement: bool | None = None
    optimizer_steps: int | None = None
    """How many steps of optimizers this rank had finished when it was issued."""
    gradients_begun: int | None = None
    """How many backwards had begun with cleared gradients when it was issued."""
    uncleared_steps: int | None = None
    """How many optimizer steps in a row had used gradients that nobody had cleared, when it was issued."""


@dataclass(slots=True)
class PendingCollective:
    """One collective as it was issued; times are monotonic ns.

    Fields of these four classes that a column of the ledger's collectives has the name of become its values.
    """

    message: Message
    place: Place
    issue_ns: int
    seq: int | None = None
    growth: int = 0
    """By how much the call made the group's sequence number grow. It is measured over the call, but never
    more than its operator is known for. A collective of another thread that cut in must not count as
    accounted for."""
    key: tuple[Any, ...] | None = None
    """Identifies its place in the step's sequence; None if C++ issued it, or if the level does not ask."""
    surveyed: Surveyed | None = None
    unseen: bool = False
    """It was counted, not seen: what it is comes from a surveyed step, and when it was issued is unknown."""


def growths(collectives: Iterable[PendingCollective]) -> dict[str, int]:
    """Return by how much these collectives made each group's sequence number grow."""
    grown: dict[str, int] = {}
    for pending in collectives:
        group = pending.message.group
        grown[group] = grown.get(group, 0) + pending.growth
    return grown


@dataclass(frozen=True, slots=True)
class UnseenAfter:
    """The last collective that C++ issued, unseen, right after `last`; that itself if there is none."""

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
    """Tickets of its data: if one of them holds one value throughout, equality proves nothing."""
    masks: tuple[int, ...] = ()
    """Tickets of operands that hold infinity on purpose."""
    moved_bytes: int = 0
    """Least bytes read and written."""
    may_leave_out: bool = False
    """For an optimizer: it leaves a step out if a gradient is not finite."""


@dataclass(slots=True)
class Wait:
    """The training thread blocked from `start_ns` to `end_ns`; `owner` indexes the collective, if known."""

    start_ns: int
    end_ns: int
    owner: int | None = None


@dataclass(frozen=True, slots=True)
class BatchSize:
    """How much one batch of a DataLoader holds."""

    samples: int | None
    """None: it has no tensor, or nothing is trained on it, as gradients are off."""
    tokens: int | None
    """Elements of its first tensor of whole numbers, [samples, length]; None if it has none."""
    data_ranks: int | None
    """Ranks that the loader's sampler divides the data set among; None if no sampler shows it."""


@dataclass(slots=True)
class Fetch:
    """The training thread fetched from a DataLoader, or saved; times are monotonic ns."""

    start_ns: int
    end_ns: int
    name: str
    source: str | None
    batch: BatchSize | None
    """The fetched batch; None for the loader's start and its end."""
    kind: Literal["data", "checkpoint"] = "data"
    bytes: int | None = None
    """Written to a checkpoint; None if unknown."""


@dataclass(slots=True)
class Before:
    """Events between the step before and this one."""

    fetches: list[Fetch] = field(default_factory=list)
    other_ns: int = 0
    """The rest of the time: neither fetching nor blocked on collectives. 0 before the first step."""


@dataclass(slots=True)
class Reads:
    """Values of tensors that the host read at one place, as `.item()` does."""

    name: str
    phase: str
    module: str | None
    source: str | None
    count: int = 0
    read_ns: int = 0
    library: str | None = None
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
    """Identities of DDP's reducers that were made ready for a backward, in order."""
    moved: bool = False
    """Some collective of a watched step has another place than the surveyed one that it repeats."""
    graphs: list[int] = field(default_factory=list)
    """Identities of the graphs of its backwards, in order, by the parameters they reach. In a watched region
    only if a sequence is known by it."""
    backward_ran: bool = False
    """Whether a backward has ended in it."""
    node_base: int = 0
    """The number that the next autograd node had when the region began."""
    collectives: list[PendingCollective] = field(default_factory=list)
    elsewhere: list[PendingCollective] = field(default_factory=list)
    """Collectives that other threads issued."""
    of_other_threads: set[str] = field(default_factory=set)
    """The groups that other threads have used since the session began; the recorder's own set."""
    computes: list[PendingCompute] = field(default_factory=list)
    roots: list[tuple[int, Value]] = field(default_factory=list)
    """The losses that backwards began with: the ticket of each, and its row without numbers."""
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
    """Times that do not belong to the step: the gradient check, which the user asked for within it."""
    waits: list[Wait] = field(default_factory=list)
    drains: list[Interval] = field(default_factory=list)
    """Times in which C++ may wait for collectives unseen by Python. These are DDP's reducer at the end of
    backward and around its broadcasts, and any wait for a future. Blocked only while a collective is in
    flight."""
    fetches: list[Fetch] = field(default_factory=list)
    before: Before = field(default_factory=Before)
    reads: dict[tuple[int, int], Reads] = field(default_factory=dict)
    """By code and instruction of the caller."""
    uncounted: dict[str, int] = field(default_factory=dict)
    """Growth of sequence numbers that was our own or the gradient check's."""
