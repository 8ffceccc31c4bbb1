"""The answer of `shardtoll compare` for two runs: what changed, how surely, and what accounts for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from shardtoll.ledger.foreign.plain import to_plain
from shardtoll.ledger.records.record import require_finite

COMPARISON_VERSION: Final = 1
LEAST_EXPLAINED: Final = 0.5
"""Part of a step's change from which a finding's own change counts as its explanation."""

Verdict = Literal["more", "less", "no change", "too few steps", "unknown"]
"""`more`, `less`: beyond noise, or a difference of exact quantities. `no change`: no difference beyond
noise."""

Whole = Literal["no change", "changed", "too few steps"]

SiteWhat = Literal["added", "removed", "dtype", "size", "count", "time", "none"]
"""Changed property of a collective; if several changed, the first in this order."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of a mean step before and after, a mean over the ranks seen; None if unknown."""

    name: str
    unit: str | None
    """`ns`, `bytes`, `FLOP`; None of counts."""
    before: float | None
    after: float | None
    verdict: Verdict
    low: float | None = None
    """Ends of the interval that holds after less before; those of all times together hold theirs in 95 of 100
    comparisons. None of exact quantities, and where there are too few steps."""
    high: float | None = None
    least: float | None = None
    """The least change that would have been seen, in four of five cases."""
    at_least: tuple[bool, bool] = (False, False)
    """Whether before, and after, are lower bounds because collectives are missing or have no size. Their
    difference then says nothing about the figure."""

    def __post_init__(self) -> None:
        require_finite(self.name, self.before, self.after, self.low, self.high, self.least)

    @property
    def difference(self) -> float | None:
        """After less before; None if one is unknown or a lower bound."""
        if self.before is None or self.after is None or any(self.at_least):
            return None
        return self.after - self.before

    @property
    def changed(self) -> bool:
        """Whether it changed, beyond noise if there is any."""
        return self.verdict in ("more", "less")


@dataclass(frozen=True, slots=True)
class Batch:
    """The effective batch: samples (or rows) of a rank's micro-batch x different data x micro-batches."""

    rows: int | None
    """Samples of a DataLoader's batch on a rank, or the first dimension of what its model was given; None if
    unknown."""
    rows_of: str | None
    """Source of `rows`."""
    ranks: int | None
    """Ranks with data of their own; None if unknown (then all ranks are taken to have it)."""
    micro_batches: int | None
    """Batches that a DataLoader gave per step and rank, or forward passes."""
    tokens: int | None = None
    """Tokens of a rank's micro-batch; None if unknown, or if they differ from step to step."""

    def effective(self, world_size: int) -> int | None:
        """Return the samples of a step; None if a part is unknown."""
        return self._whole(self.rows, world_size)

    def effective_tokens(self, world_size: int) -> int | None:
        """Return the tokens of a step; None if a part is unknown."""
        return self._whole(self.tokens, world_size)

    def _whole(self, one: int | None, world_size: int) -> int | None:
        if one is None or self.micro_batches is None:
            return None
        return one * (self.ranks or world_size) * self.micro_batches


UNKNOWN_BATCH: Final = Batch(None, None, None, None)
"""No data of the job is on record."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs, and which of its steps were compared."""

    name: str
    world_size: int
    ranks_seen: int
    timed_steps: int
    """Steps whose times were compared."""
    surveyed_steps: int
    """Steps whose operators were compared."""
    left_out: tuple[int, ...]
    """First steps, which set things up: left out."""
    slow_start: tuple[int, ...]
    """Those of them that are left out as slow against the steps after them."""
    level: str
    """How the timed steps were looked at: `watched` or `surveyed`."""
    batch: Batch
    work: float | None = None
    """Work of one step, in the comparison's unit, as given; None: not given."""
    slowest_rank: int | None = None


@dataclass(frozen=True, slots=True)
class ModuleChange:
    """Computing in one module, or of one operator if a trace names no modules."""

    name: str
    time: Change
    work: Change
    """FLOPs; exact."""
    formats: tuple[str, str] | None = None
    """Number formats computed in, if they changed."""


@dataclass(frozen=True, slots=True)
class SiteChange:
    """One kind of collective at one place: op, cause, module (layers as one), phase, group, dtype, size."""

    what: SiteWhat
    op: str
    cause: str | None
    module: str | None
    phase: str
    group: str
    source: str | None
    """A line it was called at, after the change if it is there; lines may have moved."""
    dtypes: tuple[str | None, str | None]
    """Before and after; None if unknown, or not there."""
    message_bytes: tuple[int | None, int | None]
    """Size of one call."""
    calls: Change
    """Calls per step and rank."""
    bytes: Change
    """Message bytes of a step and rank."""
    exposed: Change
    waiting: Change


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A finding of one of the bills, and the same one on the other; None: not there."""

    kind: str
    severity: str
    place: str
    """In words, with the late rank first if one is."""
    title: str
    before: int | None
    """Its number on the bill."""
    after: int | None
    toll_ns: tuple[int | None, int | None]
    firm: bool
    """It depends on the work done, not on its duration: coming or going is no noise."""
    rank: int | None = None
    """The one that is late; None of findings that are no rank's."""

    @property
    def difference_ns(self) -> int:
        """How much more it costs after; 0 without a price."""
        before, after = (toll or 0 for toll in self.toll_ns)
        return after - before


@dataclass(frozen=True, slots=True)
class Cause:
    """A named reason for the change of the step's time."""

    text: str
    change_ns: float
    """Time it adds to a step; negative if it takes time away."""
    share: float | None
    """Share of the step's change; None if the change is too small to divide by."""
    certain: bool
    """Its own time changed beyond noise."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One part of the larger run's loss against the smaller one."""

    name: str
    share: float
    """Share of the larger run's rank-time; the parts add up to one less the efficiency. Negative: a gain."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How well the work spreads over more ranks."""

    kind: Literal["strong", "weak", "given", "batch", "unknown"]
    """`strong`: the same work in all. `weak`: the same work per rank. `given`: as the user says. `batch`: by
    effective batches that are neither. `unknown`: no source says which. The figures are then those of strong
    scaling."""
    ranks: tuple[int, int]
    """Ranks of the run with fewer ranks, then of the one with more."""
    smaller_is: Literal["before", "after"]
    speedup: float
    """Work a second of the larger run over that of the smaller."""
    efficiency: float
    """The same for each rank; 1 is perfect."""
    losses: tuple[Loss, ...]
    why: str = ""
    """Why that kind was chosen."""

    @property
    def if_weak(self) -> float | None:
        """The efficiency as weak scaling; only given if the kind is unknown."""
        return self.efficiency * self.ranks[1] / self.ranks[0] if self.kind == "unknown" else None


@dataclass(frozen=True, slots=True)
class Machine:
    """Time of the same operators: it separates a slower machine from a slower program."""

    factor: float
    """After over before, the middle one of all operators whose work did not change."""
    operators: int
    """How many modules (or operators) that is of."""
    shared: bool
    """The device runs other programs too, as a CPU does: its speed is then no change of the program."""
    apart: bool
    """The factor differs from 1 by more than noise, and indicates the machine."""
    alike: bool = True
    """Nine in ten of the operators took about that factor; if not, the program may have changed."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs compared."""

    before: Side
    after: Side
    verdict: Whole
    headline: str
    """The answer in one line."""
    unit: str | None
    """Times and bytes after are of as much work, in this unit, as a step before; None: of a step each."""
    step: Change
    """Own work of a step: capture's left out."""
    parts: tuple[Change, ...]
    """The parts of the step; they add up to it."""
    totals: tuple[Change, ...]
    """The slowest rank's step, collectives, bytes, FLOPs."""
    ranks: tuple[Change, ...]
    """Time of a step outside collectives, of ranks whose own changed while the others' did not."""
    modules: tuple[ModuleChange, ...]
    sites: tuple[SiteChange, ...]
    findings: tuple[FindingChange, ...]
    causes: tuple[Cause, ...]
    """Most first."""
    unexplained_ns: float | None
    """The step's change less all causes."""
    machine: Machine | None
    """None if too few operators are on record in both."""
    scaling: Scaling | None
    """None if the runs have equally many ranks."""
    warnings: tuple[str, ...] = ()
    """Why the runs may not be comparable."""
    notes: tuple[str, ...] = ()
    """Things left out, folded or unknown."""


def leading(comparison: Comparison, change_ns: float | None) -> FindingChange | None:
    """Return the finding that explains most of a change of the step; None if none explains half of it."""
    most = max(comparison.findings, key=lambda each: abs(each.difference_ns), default=None)
    if most is None or not change_ns or most.difference_ns * change_ns <= 0:
        return None
    return most if abs(most.difference_ns) >= LEAST_EXPLAINED * abs(change_ns) else None


def comparison_to_json(comparison: Comparison) -> dict[str, Any]:
    """Return it as JSON values; unknown is null."""
    plain = to_plain(comparison)
    for name, side in (("before", comparison.before), ("after", comparison.after)):
        plain[name]["batch"]["effective"] = side.batch.effective(side.world_size)
        plain[name]["batch"]["effective_tokens"] = side.batch.effective_tokens(side.world_size)
    return {"schema_version": COMPARISON_VERSION, **plain}
