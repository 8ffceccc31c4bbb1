"""Findings: what an analysis has to say, with its evidence and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Severity = Literal["error", "warning", "info"]
"""error: results or the report are wrong. warning: time is lost. info: a choice worth knowing."""

SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""In the order of the bill."""

Confidence = Literal["certain", "likely", "possible"]

KINDS: Final[dict[str, str]] = {
    "implicit-redistribute": "communication",
    "redundant-collective": "communication",
    "sync-every-microbatch": "communication",
    "latency-bound": "communication",
    "below-roofline": "communication",
    "exposed-communication": "communication",
    "serialized-collectives": "communication",
    "cross-node-traffic": "communication",
    "wide-dtype": "communication",
    "straggler": "communication",
    "needless-barrier": "communication",
    "constant-buffers": "communication",
    "unused-parameter-search": "communication",
    "expert-imbalance": "communication",
    "gathered-logits": "communication",
    "duplicated-compute": "compute",
    "duplicated-data": "compute",
    "recompute": "compute",
    "wrong-gradient": "correctness",
    "replica-drift": "correctness",
    "unsynced-parameter": "correctness",
    "missing-zero-grad": "correctness",
    "non-finite": "correctness",
    "identical-shards": "correctness",
    "pipeline-bubble": "schedule",
    "pipeline-imbalance": "schedule",
    "data-stall": "schedule",
    "host-sync": "schedule",
    "launch-bound": "schedule",
    "transfer-stall": "schedule",
    "checkpoint-stall": "schedule",
    "unattributed-time": "trust",
    "unmatched-collectives": "trust",
    "incomplete-input": "trust",
    "clock-skew": "trust",
    "hang": "correctness",
}
"""The closed list: kind -> family. CONTRIBUTING, under *A kind of finding*, lists the parts of a new one."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One checkable fact: a label and a value with its unit."""

    label: str
    value: int | float | str | None
    unit: str | None = None
    """`ns`, `bytes`, `GB/s`, `FLOP`, `share`, `x`, ... None for plain text and counts."""

    def __post_init__(self) -> None:
        if isinstance(self.value, float) and not math.isfinite(self.value):
            raise ValueError(
                f"evidence {self.label!r} is {self.value}: say what that means in words, or None"
            )
        _keep_as_read(self)


Unit = Literal["ns", "bytes", "count", "share", "flops", "x"]
"""share: a part of one. x: times as much."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a finding for programs: its name never changes, unlike a label of evidence."""

    name: str
    """Stable and in snake case, as `flops_too_many`; docs/json.md lists them."""
    value: int | float
    unit: Unit

    def __post_init__(self) -> None:
        if not str(self.name).isidentifier():
            raise ValueError(f"{str(self.name)[:40]!r} is no name of a figure")
        if self.unit not in get_args(Unit):
            raise ValueError(f"unknown unit {self.unit!r} of figure {self.name}")
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"figure {self.name} is {self.value}: leave an unknown figure out")
        _keep_as_read(self)


def _keep_as_read(fact: Evidence | Figure) -> None:
    """Make a whole number beyond 64 bits a float: no JSON of ours holds one. FLOPs of many ranks are."""
    if isinstance(fact.value, int) and abs(fact.value) >= 1 << 63:
        object.__setattr__(fact, "value", float(fact.value))


Cause = Literal[
    "missing-reduction",
    "wrong-scale",
    "replicas-differ",
    "missing",
    "extra",
    "zero",
    "not-finite",
    "doubled-reduction",
    "wrong-norm",
    "unknown",
]
"""Reason for a wrong gradient. `doubled-reduction`: reduced twice, or summed although its siblings are
averaged. `wrong-norm`: the total norm is wrong, no gradient."""

RowTable = Literal["collectives", "computes", "steps"]
RowRun: TypeAlias = tuple[int, int, int]
"""First row, number of rows, distance from one to the next."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of the run's tables a finding speaks of, as evenly spaced runs in ascending order.

    A step repeats itself: thousands of rows of a long run are a few runs.
    """

    collectives: tuple[RowRun, ...] = ()
    computes: tuple[RowRun, ...] = ()
    steps: tuple[RowRun, ...] = ()

    def __post_init__(self) -> None:
        for name in get_args(RowTable):
            after = -1
            for first, count, distance in getattr(self, name):
                if first <= after or count < 1 or distance < 1:
                    raise ValueError(f"rows of {name} are not in ascending runs at row {first}")
                after = first + (count - 1) * distance

    def __bool__(self) -> bool:
        return bool(self.collectives or self.computes or self.steps)

    @classmethod
    def of(
        cls,
        collectives: npt.ArrayLike = (),
        computes: npt.ArrayLike = (),
        steps: npt.ArrayLike = (),
    ) -> Rows:
        """Return the rows with these places in their tables, in any order."""
        return cls(_runs(collectives), _runs(computes), _runs(steps))

    def mask(self, table: RowTable, length: int) -> npt.NDArray[np.bool_]:
        """Return for each row of a table of that length whether it is one of them."""
        import numpy as np

        spoken = np.zeros(length, dtype=np.bool_)
        for first, count, distance in getattr(self, table):
            spoken[first : first + (count - 1) * distance + 1 : distance] = True
        return spoken

    def within(self, table: RowTable, kept: npt.NDArray[np.bool_]) -> Rows:
        """Return the same rows after only those marked in `kept` are left of that table."""
        import numpy as np

        if not getattr(self, table):
            return self
        places = (np.cumsum(kept) - 1)[self.mask(table, len(kept)) & kept]
        return replace(self, **{table: _runs(places)})


def _runs(places: npt.ArrayLike) -> tuple[RowRun, ...]:
    """Return the places as few evenly spaced runs."""
    import numpy as np

    every = np.unique(np.asarray(places, dtype=np.int64))
    if not len(every):
        return ()
    gaps = np.diff(every)
    # Equal gaps in a row: each stretch begins where the gap differs from the one before.
    begins = np.flatnonzero(np.diff(gaps, prepend=-1))
    lengths = np.diff(begins, append=len(gaps))
    runs: list[RowRun] = []
    # The first row that is in no run yet.
    place = 0
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        rows = begin + length + 1 - place
        # A stretch of one gap may be nothing but the way to the next stretch.
        if rows > 1:
            runs.append((int(every[place]), rows, int(gaps[begin])))
            place += rows
    if place < len(every):
        runs.append((int(every[place]), 1, 1))
    return tuple(runs)


Effort = Literal["one line", "a flag", "a few lines", "a redesign"]
"""How large a fix is. A flag is an argument or setting that exists already."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """The change to make. A saving is only claimed against `counterfactual`."""

    text: str
    code: str | None = None
    """Code to write, if there is a short one."""
    counterfactual: str | None = None
    """The step that the saving is measured against, as `the same step without this all_gather`."""
    effort: Effort | None = None
    """None if a cause has to be found first, or if nobody knows."""
    key: str | None = None
    """Equal for findings that the same change fixes, whatever places and numbers it names; None if
    unknown."""
    measures: bool = False
    """Whether it only finds the cause, as a recording or a calibration: that by itself saves nothing."""


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a finding; None if it does not apply or is unknown."""

    phase: str | None = None
    module: str | None = None
    parameter: str | None = None
    op: str | None = None
    source: str | None = None
    group: str | None = None
    mesh_dim: str | None = None
    library: str | None = None
    """`file.py:line (function)` of the innermost frame of an installed library, torch apart, that the line at
    `source` called: there the operator was run. None if the line calls none, or they differ."""

    @classmethod
    def of_parameter(
        cls,
        name: str,
        *,
        phase: str | None = None,
        op: str | None = None,
        source: str | None = None,
        group: str | None = None,
        mesh_dim: str | None = None,
    ) -> Where:
        """Return the place of a parameter or buffer by its name, in the module that holds it."""
        module = name.rpartition(".")[0]
        return cls(phase, module, name, op, source, group, mesh_dim)

    def label(self) -> str:
        """Return the most telling part in few words: source line, else parameter, module, group."""
        for value in (self.source, self.parameter, self.module):
            if value:
                return value
        if self.mesh_dim or self.group:
            return f"group {self.mesh_dim or self.group}"
        return self.op or "whole step"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One of several places of a finding, with its part of the finding's cost."""

    where: Where
    count: int
    """How many times per step and rank; 0: less than once in two steps."""
    toll_ns: int | None
    """Its part of the toll per step, on the rank where that is largest; None if unknown."""


HIDING: Final = ("exposed-communication", "serialized-collectives")
"""Kinds whose fix hides transfers behind compute; the fix of other kinds sends less."""

_LEAST_BEYOND: Final = 0.01
_PRICES: Final = ("toll_ns", "saving_ns", "saving_low_ns", "saving_high_ns")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the bill. Times and bytes are per step, each on the rank where it is largest."""

    kind: str
    severity: Severity
    title: str
    """One plain sentence with the numbers that matter."""
    toll_ns: int | None
    """Cost per step, on the rank with the highest cost: exposed plus duplicated compute; None if unknown.

    Findings may cost most on different ranks, so their tolls do not add up to one rank's step."""
    floor_ns: int | None
    """The least time the fabric allows for the needed communication; None if unknown or not applicable."""
    saving_ns: int | None
    """Gain of the remedy per step against its counterfactual; never above the toll. A prediction by replay if
    `replayed` is known, else an upper bound."""
    bytes: int | None
    """Message bytes per step and rank; None if none are involved."""
    count: int
    """How many times per step and rank; what happens less than once per step counts 1."""
    ranks: tuple[int, ...]
    """Ranks it was seen on."""
    where: Where = field(default_factory=Where)
    evidence: tuple[Evidence, ...] = ()
    remedy: Remedy | None = None
    confidence: Confidence = "certain"
    figures: tuple[Figure, ...] = ()
    """Numbers that programs decide by; evidence shows them to people."""
    rows: Rows = field(default_factory=Rows)
    """Rows of the report's tables that the finding is about; empty if there are none or they are unknown."""
    parameters: tuple[str, ...] = ()
    """All parameters or buffers it stands for, if they are several; `where` has a single one."""
    cause: Cause | None = None
    """Cause of a wrong gradient, and of a parameter that no recorded reduction carries; else None."""
    places: tuple[Occurrence, ...] = ()
    """All its places, the most expensive first, if they are several; `where` is the first of them."""
    also: tuple[str, ...] = ()
    """Further kinds that its collectives are of, which have no line of their own: time is billed once."""
    saving_low_ns: int | None = None
    """Low end of the predicted saving's band; None if `saving_ns` is an upper bound."""
    saving_high_ns: int | None = None
    """High end of it; never above the toll either."""
    replayed: str | None = None
    """Which change to the recorded step was replayed, as `without these collectives`; None for none."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown finding kind {self.kind!r}")
        if unknown := [kind for kind in self.also if kind not in KINDS]:
            raise ValueError(f"unknown finding kind {unknown[0]!r}")
        if self.severity not in SEVERITIES:
            raise ValueError(f"unknown severity {self.severity!r}")
        if self.confidence not in get_args(Confidence):
            raise ValueError(f"unknown confidence {self.confidence!r}")
        if self.cause is not None and self.cause not in get_args(Cause):
            raise ValueError(f"unknown cause {self.cause!r}")
        for name in (*_PRICES, "floor_ns", "bytes", "count"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{self.kind}: {name} {value} < 0")
        for name in _PRICES[1:]:
            value = getattr(self, name)
            if value is not None and (self.toll_ns is None or value > self.toll_ns):
                raise ValueError(
                    f"{self.kind}: {name.removesuffix('_ns').replace('_', ' ')} {value} ns above toll "
                    f"{self.toll_ns} ns"
                )

    @property
    def beyond_floor(self) -> Literal["hidden", "left out"] | None:
        """How the saving exceeds the toll above its floor; None if it does not, or by less than 1 %."""
        if not self.floor_ns or not self.saving_ns or self.toll_ns is None:
            return None
        if self.saving_ns - (self.toll_ns - self.floor_ns) <= _LEAST_BEYOND * self.saving_ns:
            return None
        return "hidden" if self.kind in HIDING else "left out"

    @property
    def doubts_training(self) -> bool:
        """Whether it is a warning that ranks probably train apart: no cost of a step matters more."""
        likely = self.severity == "warning" and self.confidence != "possible"
        return likely and self.family == "correctness" and self.cause == "missing-reduction"

    @property
    def only_measures(self) -> bool:
        """Whether its remedy only records more, which by itself saves nothing."""
        return self.remedy is not None and self.remedy.measures

    @property
    def remedy_saves_ns(self) -> int | None:
        """The saving of the remedy that it names; None if unknown, or if the remedy only measures."""
        return None if self.only_measures else self.saving_ns

    @property
    def family(self) -> str:
        """communication, compute, correctness, schedule or trust."""
        return KINDS[self.kind]

    def figure(self, name: str) -> int | float | None:
        """Return the value of the figure with that name; None if there is none."""
        return next((figure.value for figure in self.figures if figure.name == name), None)


CONSEQUENCES: Final = {"wrong-gradient": 1, "replica-drift": 2}
"""Kind of an error that another kind may cause -> its place after that."""


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return errors, then warnings, then infos. Within each, the finding whose fix saves most comes first,
    unknown ones last. The saving is the predicted one if it is replayed, else the toll, which bounds it.

    A warning that ranks probably train apart stands before the others: see `Finding.doubts_training`. Among
    errors of equal cost, a cause comes before its effects. A parameter that was never synchronised gets a
    wrong gradient, and its replicas drift. Among other findings of equal cost, the fix that saves more comes
    first; equal ones keep their order. An info may cost more than a warning: it is not known to be anybody's
    fault.
    """
    return tuple(
        sorted(
            findings,
            key=lambda finding: (
                SEVERITIES.index(finding.severity),
                not finding.doubts_training,
                finding.toll_ns is None,
                -((finding.toll_ns if finding.replayed is None else finding.saving_ns) or 0),
                CONSEQUENCES.get(finding.kind, 0),
                -(finding.saving_ns or 0),
            ),
        )
    )


def do_not_add_up(findings: Iterable[Finding], *, exposed_ns: float, step_ns: float) -> bool:
    """Return whether the tolls of several findings are more than one rank can lose.

    Tolls of communication are limited to the most exposed communication of a rank, all of them to the longest
    step.
    """
    billed = [finding for finding in findings if finding.toll_ns]
    of_comm = sum(finding.toll_ns or 0 for finding in billed if finding.family == "communication")
    of_all = sum(finding.toll_ns or 0 for finding in billed)
    return len(billed) > 1 and (of_comm > exposed_ns or of_all > step_ns)
