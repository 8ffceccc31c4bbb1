"""State of one rank: its last collectives in program order, and where it stands now.

A flight file of ours, a dump of NCCL's flight recorder and a log of torch all become these records. Times are
nanoseconds since 1970 on the rank's own host; None is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

State: TypeAlias = Literal["open", "closed", "failed", "left", "unknown"]
"""`open`: the rank was inside its audit. `closed`: the audit ended well. `failed`: by an exception. `left`:
the interpreter ended with the audit open. `unknown`: the file does not say."""
Life: TypeAlias = Literal["alive", "stopped", "dead", "unknown"]
"""Whether the process still lives; stopped: by a signal, as SIGSTOP."""
Source: TypeAlias = Literal["flight", "recorder", "log"]
"""flight: our own file. recorder: a dump of torch's flight recorder. log: a line of torch's in a log."""

STATES: Final[tuple[State, ...]] = get_args(State)
POINT_TO_POINT: Final = ("send", "recv")


@dataclass(frozen=True, slots=True)
class FlightCall:
    """One collective as one rank issued it."""

    number: int
    """In the program order of the rank, from 1."""
    op: str
    group: str
    place: int | None
    """Its place among the group's collectives, the same on every rank. For a send or recv: its place among
    those of the same direction between the same two ranks."""
    message_bytes: int | None = None
    dtype: str | None = None
    reduce_op: str | None = None
    root: int | None = None
    """Global rank of the root; of a send or recv that of the other side."""
    source: str | None = None
    """`file.py:line (function)` of the user's code."""
    received_bytes: int | None = None
    """Bytes that this rank gets in an all_to_all."""
    module: str | None = None
    phase: str | None = None
    step: int | None = None
    issued_ns: int | None = None
    finished_ns: int | None = None
    """None while it is in flight, and where its end was not seen."""
    nth_in_step: int | None = None
    """Which one it is of the step's calls that say the same from the same line."""
    most_in_step: int | None = None
    """How many such calls an earlier step had at most, also one that the record has lost."""

    @property
    def is_point_to_point(self) -> bool:
        """Whether it is a send or a recv."""
        return self.op in POINT_TO_POINT


@dataclass(frozen=True, slots=True)
class FlightGroup:
    """A process group as one rank knows it."""

    name: str
    ranks: tuple[int, ...]
    """Global ranks; empty if unknown."""
    description: str | None = None
    """The name of its mesh dimension, or what torch calls it."""
    finished_place: int | None = None
    """Place of the last collective that finished here."""
    issued_place: int | None = None
    """Place of the last collective issued here, those that C++ issued included."""


@dataclass(frozen=True, slots=True)
class RankFlight:
    """One rank at the moment its file was read, or at its end."""

    rank: int
    world_size: int | None
    source: Source
    path: str
    calls: tuple[FlightCall, ...] = ()
    """The last ones, in program order."""
    groups: tuple[FlightGroup, ...] = ()
    state: State = "unknown"
    life: Life = "unknown"
    host: str | None = None
    pid: int | None = None
    step: int | None = None
    blocked: int | None = None
    """Number of the call that the training thread waits in; 0: in an unknown one; None: in none."""
    blocked_since_ns: int | None = None
    raised: int | None = None
    """Number of the call whose wait raised an exception last."""
    raised_since_ns: int | None = None
    """When that call, or the wait for it, began."""
    moved_ns: int | None = None
    """When the rank last issued or finished a collective, or began a step."""
    stood_since_ns: int | None = None
    """Since when its training thread had stood still at the last look; None if it moved, or is unknown."""
    heartbeat_ns: int | None = None
    beat_every_ns: int | None = None
    """Time between heartbeats; None if the rank keeps none."""
    hang_after_ns: int | None = None
    line: str | None = None
    """Line of the user's code that the training thread was at when it last stood still."""
    frames: tuple[str, ...] = ()
    """Its innermost frames then, the innermost first."""
    error: str | None = None
    """The exception that ended its audit."""
    stacks: str | None = None
    """File with the stacks of all its threads, if one was written."""
    run_id: str | None = None
    not_arrived: tuple[int, ...] = ()
    """Ranks that torch itself says did not come, as its monitored barrier does."""
    waited_ns: int | None = None
    """How long torch says it has waited; None if the times say it, or nothing does."""
    waits_block: bool = True
    """Whether a wait returns only when the collective is done; not so on an accelerator."""

    def call(self, number: int | None) -> FlightCall | None:
        """Return the call of that number; None if it is not among the last ones."""
        return next((call for call in reversed(self.calls) if call.number == number), None)

    @property
    def blocked_call(self) -> FlightCall | None:
        """The collective that the training thread waits in; None if it is in none, or in an unknown one."""
        return None if self.blocked is None else self.call(self.blocked)

    def group(self, name: str) -> FlightGroup | None:
        """Return the rank's facts about a group; None if it never used it."""
        return next((group for group in self.groups if group.name == name), None)
