"""The least time that hardware and fabric allow for a training step, and its measured time: records.

Three ideas, each of a mean step of one rank. *Light*: peaks of the accelerator and physics of the links.
*Floor*: what tuned kernels and a tuned library reach there. *Took*: what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from shardtoll.ledger.foreign.plain import from_plain

Bound = Literal["compute", "memory"]

_BEYOND: Final = 1e30
"""No figure of a step comes near; JSON's whole numbers may be too large for a float."""

SPEED_OF_LIGHT: Final = (
    "speed of light: accelerator, memory and links at their physical rates, compute and communication "
    "fully overlapped"
)
BEST_OVERLAP: Final = (
    "best overlap: what tuned kernels and a tuned library reach, fully overlapped, as if nothing had to "
    "wait for anything"
)
UTILISATION: Final = (
    "MFU: FLOPs of matmuls, attention and convolutions against the peak of their format, without recompute "
    "by checkpointing (HFU: with it). float32 is held against TensorFloat-32"
)
DEFINITIONS: Final = frozenset([SPEED_OF_LIGHT, BEST_OVERLAP, UTILISATION])
"""Items of `StepRoofline.assumptions` that define a term. They are identical for every run."""


@dataclass(frozen=True, slots=True)
class RankRoofline:
    """One rank's mean step. Every `*_light_ns` and `*_floor_ns` is a lower bound; None if unknown."""

    rank: int
    steps: int
    """Steps that `took_ns` is the mean of."""
    took_ns: int
    """Duration, capture's own work left out."""
    exposed_comm_ns: int | None
    """Over the steps in which it is known; `assumptions` say whether it is a lower bound."""
    flops: int | None = None
    """FLOPs of all operators whose FLOPs are known, recomputed ones included."""
    hfu: float | None = None
    """Hardware FLOPs utilisation: FLOPs of matmuls, attention and convolutions, each against the peak of its
    format, as a share of the step."""
    mfu: float | None = None
    """Model FLOPs utilisation: the same without what activation checkpointing computes again."""
    known_share: float | None = None
    """Share of the device's compute time spent in operators whose FLOPs or bytes are known; None if operators
    have no device times."""
    compute_light_ns: int | None = None
    """Operators one after the other, each at the accelerator's peak or its memory's rate."""
    compute_floor_ns: int | None = None
    """The same at the rate that large matmuls were measured to reach; operators of unknown work as long as
    they took."""
    comm_light_ns: int | None = None
    """Physics of the links: the collectives of the busiest group, one after the other."""
    comm_floor_ns: int | None = None
    """The time a tuned library reaches for the collectives of the busiest group."""
    comm_serial_ns: int | None = None
    """The same for all groups, one after the other."""
    comm_known_share: float | None = None
    """Share of the step's collectives whose least time is known; None without collectives."""
    comm_count: int | None = None
    """Collectives in all `steps`."""
    comm_light_count: int | None = None
    """Those of them whose speed of light is known: what `comm_light_ns` counts."""
    comm_floor_count: int | None = None
    """Those of them whose least time is known: what `comm_floor_ns` counts."""
    light_ns: int | None = None
    """Speed of light of the step: compute and communication at theirs, fully overlapped."""
    best_overlap_ns: int | None = None
    """Compute and communication at their floors, fully overlapped."""
    serial_ns: int | None = None
    """Compute and communication at their floors without any overlap; no bound: a step may be faster."""
    hideable_ns: int | None = None
    """Exposed communication that compute, as long as it took, could hide at best. None also if the exposed
    time is a lower bound and compute could hide more than that."""


@dataclass(frozen=True, slots=True)
class OpRoofline:
    """Equal operators, a mean step of a mean rank."""

    op: str
    dtype: str | None
    """The format of the peak they are compared with; None if their operands have none."""
    shapes: str | None
    count: float
    """Calls a step and rank."""
    flops: int | None
    """FLOPs of one call."""
    moved_bytes: int | None
    """Least bytes of one call."""
    intensity: float | None
    """FLOPs a byte."""
    device_ns: int | None
    """One call; None if operators have no device times."""
    tflops: float | None
    """1e12 operations a second that were reached."""
    light_ns: int | None
    """Least time of one call at the accelerator's peaks."""
    bound: Bound | None
    """Which of the peaks that is."""


@dataclass(frozen=True, slots=True)
class StepRoofline:
    """The steps of a run against what hardware and fabric allow."""

    gpu: str | None
    """The accelerator whose peaks were taken; None if they are unknown."""
    why_unknown: str | None
    """Why its peaks are unknown, in one line; None if they are known."""
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    """1e12 operations a second by format."""
    memory_gbps: float | None = None
    reached_tflops: float | None = None
    """The best that large bfloat16 matmuls were measured to reach."""
    ranks: tuple[RankRoofline, ...] = ()
    ops: tuple[OpRoofline, ...] = ()
    """Those that take longest, or whose least time is longest."""
    assumptions: tuple[str, ...] = ()
    """Assumptions behind the figures, one sentence each."""
    refuted: tuple[str, ...] = ()
    """Bounds that the job was faster than, one sentence each; they are left out."""
    guesses: tuple[str, ...] = ()
    """Names of the accelerator's numbers that are guesses."""


def roofline_from_plain(data: Any) -> StepRoofline:
    """Return the section that JSON values hold.

    Raises ValueError for a field that is missing, unknown or unfit, and for a number that is negative or
    beyond measure. A record made here may hold such a number: an operator's figures may overflow.
    """
    roofline = from_plain(StepRoofline, data)
    for kind, rows in ((RankRoofline, data.get("ranks", ())), (OpRoofline, data.get("ops", ()))):
        names = {item.name for item in fields(kind)}
        if any(set(row) != names for row in rows):
            raise ValueError(f"{kind.__name__} rows do not have the fields they should")
    records: tuple[StepRoofline | RankRoofline | OpRoofline, ...] = (roofline, *roofline.ranks, *roofline.ops)
    for record in records:
        for item in fields(record):
            value = getattr(record, item.name)
            for number in value.values() if isinstance(value, Mapping) else (value,):
                if isinstance(number, (int, float)) and not 0 <= number < _BEYOND:
                    raise ValueError(f"roofline {item.name} is negative, no number, or beyond measure")
    return roofline
