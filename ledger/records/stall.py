"""Records of lost time: why a rank stood still, and its work before it joined a collective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from shardtoll.ledger.records.record import PHASES

StallKind = Literal[
    "data", "host-sync", "bubble", "launch", "host", "copy", "recompute", "unclassified", "checkpoint"
]
STALL_KINDS: Final[tuple[str, ...]] = get_args(StallKind)
IDLE_KINDS: Final = ("bubble", "data", "host-sync", "launch", "host")
"""Kinds whose `lost_ns` are parts of the step's idle time. If several explain an instant, the first of them
has it, so their sum is never more than the idle time."""
SHORT_GAP_NS: Final = 1_000_000
"""In a longer gap the host does something else than launch: Python takes less between two operators."""

BETWEEN_STEPS: Final = "between steps"
"""Name of a `host` stall that is all before its step: time neither fetching nor blocked on collectives."""

GRAPH_CAPTURE: Final = "graph capture"
"""Name of a `host` stall in which the host recorded launches into a graph: none of them ran then."""

BLOCKED: Final = ", blocked on a collective"
"""How the name of a `host-sync` stall ends that is the part of reads which is exposed communication."""


@dataclass(frozen=True, slots=True)
class Stall:
    """One reason for which a rank lost time in a step, all its occurrences added up.

    `data`: the device was idle while the host fetched a batch; live, also the fetching before the step.
    `host-sync`: idle after or while the host waited for the device. Live: how often and how long the host
    read values, which costs a CPU no idle time. `bubble`: idle inside a pipeline schedule. `launch`: a short
    gap before work that the host launched only after the device had fallen idle. `host`: idle for no other
    reason on record; live, the time between steps. `copy`: memory copies no compute hid. `recompute`: compute
    done again for activation checkpointing. `checkpoint`: live, the training thread wrote a checkpoint, in
    the step or before it. `unclassified`: device work that looks like communication and is none we know.
    """

    step: int | None
    """None: outside every step."""
    rank: int
    kind: str
    name: str
    """Name of the annotation, runtime call, copy or kernel; empty if nothing names it."""
    phase: str
    count: int
    """Occurrences."""
    total_ns: int
    """How long they lasted, summed; parts that run side by side count each."""
    lost_ns: int
    """The part of the step's idle (or exposed copy, compute, unattributed) time they account for;
    each instant is counted once."""
    module: str | None = None
    source: str | None = None
    """`file.py:line (function)` of the user's own code."""
    bytes: int | None = None
    """Bytes copied, or written to a checkpoint; None if that does not apply or is unknown."""
    before_ns: int | None = None
    """The part of `total_ns` between the step before and this one. No step's duration contains it, so no
    `lost_ns` does: a loop waits for its batch before the step that uses it. None: not looked at."""
    library: str | None = None
    """The innermost frame of an installed library that the line at `source` called; see `Collective`.

    For a trace's `host` stall: the innermost function that was open for most of it.
    """
    samples: int | None = None
    """For `data`: samples in the batches fetched to train on; None if unknown, and with gradients off."""
    tokens: int | None = None
    """The same of tokens: elements of each batch's first tensor of whole numbers, [samples, length]."""
    data_ranks: int | None = None
    """For `data`: ranks that the loader's sampler divides the data set among; None if no sampler shows it."""

    def __post_init__(self) -> None:
        if self.kind not in STALL_KINDS:
            raise ValueError(f"unknown stall kind {self.kind!r}")
        if self.phase not in PHASES:
            raise ValueError(f"unknown phase {self.phase!r}")
        for name in ("count", "total_ns", "lost_ns", "bytes", "before_ns", "samples", "tokens", "data_ranks"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{self.kind}: {name} {value} < 0")


@dataclass(frozen=True, slots=True)
class Leadup:
    """A rank's device time between the last collective of the same group and the start of this one.

    Ranks leave a collective together. A rank that joins the next one late did something longer than the
    others since: the parts show which. They add up to the collective's start minus `since_ns`.
    """

    step: int | None
    rank: int
    index: int
    """Position of the collective among this rank's rows of the collectives' table, from 0."""
    since_ns: int
    """End of the group's collective before, or else the start of the step, ns since the run's epoch."""
    compute_ns: int
    comm_ns: int
    """In other collectives, without compute."""
    copy_ns: int
    """In memory copies, without compute or collectives."""
    data_ns: int
    """Idle while the host fetched a batch."""
    sync_ns: int
    """Idle while or after the host waited for the device."""
    host_ns: int
    """Idle otherwise: the host had launched nothing."""
    phase: str
    """The phase in which most of the compute was."""
    module: str | None = None
    """The module with the most compute, if known."""
    op: str | None = None
    """The kernel with the most time."""
    op_ns: int | None = None

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(f"unknown phase {self.phase!r}")
        if any(part < 0 for part in self.parts_ns):
            raise ValueError(f"leadup {self.index} of rank {self.rank}: negative part {self.parts_ns}")

    @property
    def parts_ns(self) -> tuple[int, int, int, int, int, int]:
        """Compute, other collectives, copies, data, sync, host."""
        return (self.compute_ns, self.comm_ns, self.copy_ns, self.data_ns, self.sync_ns, self.host_ns)
