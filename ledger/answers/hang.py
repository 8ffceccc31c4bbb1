"""The answer of `shardtoll hang`: who is stuck, where, since when, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from shardtoll.ledger.foreign.plain import to_plain
from shardtoll.ledger.records.finding import Finding
from shardtoll.ledger.records.flight import FlightCall

HANG_VERSION: Final = 1

Standing: TypeAlias = Literal[
    "waits", "runs", "dead", "failed", "closed", "left", "stopped", "no file", "unknown"
]
"""`waits`: in a collective, or waiting for one. `runs`: in none. `dead`: its process is gone, or its
heartbeat stopped before that of others. `failed`: an exception ended its audit. `closed`: its audit ended
well. `left`: its interpreter ended with the audit open. `stopped`: by a signal, as SIGSTOP. `no file`: no
file of it is there."""

Why: TypeAlias = Literal[
    "none",
    "slow",
    "skipped",
    "extra",
    "mismatch",
    "order",
    "cycle",
    "failed",
    "dead",
    "closed",
    "stopped",
    "late",
    "no peer",
    "no file",
    "unknown",
]
"""Why the job hangs. `none`: it does not. `slow`: ranks wait for a late one, not long enough for a hang.
`skipped`, `extra`: a rank left out a collective, or issued one too many. `mismatch`: ranks disagree on what
one collective is. `order`: ranks issue collectives of several groups in different order. `cycle`: ranks wait
for each other. `failed`, `dead`, `closed`, `stopped`: ranks wait for one that will not come. `late`: ranks
wait for one that is elsewhere in its program. `no peer`: a send has no recv, or a recv no send. `no file`:
ranks wait for ranks without any file."""


@dataclass(frozen=True, slots=True)
class RankStand:
    """One rank: its present collective or state, and since when."""

    rank: int
    standing: Standing
    call: FlightCall | None = None
    """The collective that it waits in; of ranks that do not wait the last one issued."""
    for_ns: int | None = None
    """How long it has waited, or issued nothing; None if unknown."""
    line: str | None = None
    """Line of the user's code that it was last seen at."""
    waits_for: tuple[int, ...] = ()
    """Ranks that have not arrived where it waits."""
    step: int | None = None
    error: str | None = None
    heartbeat_age_ns: int | None = None
    """How old its last heartbeat is, compared with the newest of all ranks; None if it keeps none."""
    host: str | None = None
    pid: int | None = None
    stacks: str | None = None
    """File with the stacks of all its threads."""
    issued: int | None = None
    """How many collectives its own file has seen it issue, those that C++ issues left out; None if
    unknown."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A property of a collective in which one rank differs from most others."""

    rank: int
    what: str
    """`op`, `root`, `reduce_op`, `dtype`, `message_bytes` or `splits`."""
    here: str | int | None
    others: str | int | None


@dataclass(frozen=True, slots=True)
class GroupStand:
    """One collective that ranks wait in."""

    group: str
    ranks: tuple[int, ...]
    description: str | None
    op: str
    place: int | None
    """Its place in the group, from 1 when the audit opened."""
    message_bytes: int | None
    finished_place: int | None
    """Last place that some rank saw finished."""
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Divergence:
    """First place at which the programs of ranks differ, in the order in which they issue collectives."""

    rank: int
    call: FlightCall
    others: tuple[int, ...]
    others_call: FlightCall
    what: str
    """`skipped`, `extra`, `order`, `op`, `root`, `reduce_op`, `dtype`, `message_bytes` or `line`."""
    certain: bool
    """Whether earlier steps or most ranks show which side is the odd one."""


@dataclass(frozen=True, slots=True)
class HangAnswer:
    """The diagnosis of one job."""

    hang: bool
    why: Why
    verdict: str
    """One sentence with ranks and lines."""
    ranks: tuple[RankStand, ...]
    groups: tuple[GroupStand, ...] = ()
    cycle: tuple[int, ...] = ()
    """Ranks that wait for each other, each for the next one, the last for the first."""
    divergence: Divergence | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    """Inputs that could not be read, and unknown facts."""
    hang_after_ns: int | None = None


def hang_to_json(answer: HangAnswer) -> dict[str, Any]:
    """Return it as JSON values; unknown is null."""
    plain: dict[str, Any] = to_plain(answer)
    return {"schema_version": HANG_VERSION, **plain}
