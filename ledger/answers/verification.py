"""The answer of `shardtoll verify` for two runs: what became of findings, gradients and time after a
change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from shardtoll.ledger.foreign.plain import to_plain
from shardtoll.ledger.records.finding import Finding
from shardtoll.ledger.records.record import require_finite

Verdict = Literal["gone", "smaller", "still there", "cannot be told"]
Answer = Literal["equal", "differ", "unknown"]
Kept = Literal["kept", "exceeded", "not seen", "longer", "none made", "cannot be told"]
"""Outcome of a predicted saving, which is an upper bound. `kept`: the step is shorter, by no more than
predicted. `exceeded`: by more. `not seen`: the change is within noise. `longer`: the step is longer. `cannot
be told`: no times to compare, or fewer than 8 steps, which prove none of these."""

VERIFICATION_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure of a step before and after the change; None if unknown."""

    name: str
    unit: str | None
    """As that of an `Evidence`."""
    before: float | None
    after: float | None
    at_least: tuple[bool, bool] = (False, False)
    """Whether before, and after, are lower bounds: how these differ says nothing of the figure."""

    def __post_init__(self) -> None:
        require_finite(self.name, self.before, self.after)


@dataclass(frozen=True, slots=True)
class Judged:
    """One finding of the run before, and what became of it."""

    number: int
    """On the bill of the run before."""
    finding: Finding
    verdict: Verdict
    why: str
    """One plain sentence."""
    after: Finding | None = None
    """The finding that is left of it in the run after."""
    quantity: Quantity | None = None
    """The finding's own figure, which is less noisy than a step's time."""

    @property
    def promised(self) -> bool:
        """Whether a fix was predicted to save time, so that the step's time can be held to it."""
        return bool(self.finding.saving_ns)

    @property
    def shrank(self) -> bool:
        """Whether it is gone or smaller."""
        return self.verdict in ("gone", "smaller")


@dataclass(frozen=True, slots=True)
class Difference:
    """A parameter whose gradient differs between the runs."""

    parameter: str
    step: int
    relative: float | None
    """|after - before| / |before|; None if before is zero."""
    tolerance: float
    factor: float | None = None
    """k where after = k x before within the tolerance."""
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Gradients:
    """Whether the gradients of both runs are equal."""

    answer: Answer
    why: str
    parameters: int = 0
    """Compared."""
    steps: int = 0
    differences: tuple[Difference, ...] = ()
    """The worst first."""
    change_expected: bool = False
    """The run before has a finding that says its gradients are wrong: a fix must change them."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Time that the change saved per step, on the slowest rank of each run, without capture's own work."""

    before_ns: int | None
    after_ns: int | None
    measured_ns: int | None
    """Before less after; negative if the step is longer."""
    low_ns: int | None
    """Ends of the interval that should hold the true value in 95 of 100 cases, as `compare` computes it. None
    with fewer than two steps. With fewer than 8 steps, or if neighbouring steps depend on each other for
    long, it holds the value less often."""
    high_ns: int | None
    predicted_ns: int | None
    """Sum of the savings of the findings that were named, or of all if none was, that are gone or smaller.
    Never more than the step before. Findings that save the same time count as on the bill before. None if no
    saving was claimed."""
    steps_before: int
    steps_after: int
    kept: Kept
    why: str
    timed: str = "all steps"
    """Which steps of the runs were timed, as `watched steps`."""
    predicted_low_ns: int | None = None
    """Ends of the prediction's band; None if no judged finding's saving was replayed."""
    predicted_high_ns: int | None = None
    left_out_before: tuple[int, ...] = ()
    """The first steps, which were not timed as they set things up: a report's own figures hold them."""
    left_out_after: tuple[int, ...] = ()
    besides_ns: int | None = None
    """Predicted saving of the other findings that are gone or smaller too; None if none was claimed."""

    @property
    def held(self) -> bool | None:
        """Whether the measured saving, with its interval, meets the predicted band. None if either is
        unknown, if the step's time proves nothing, or if other findings contributed."""
        if self.besides_ns or self.kept == "cannot be told":
            return None
        ends = (self.low_ns, self.high_ns, self.predicted_low_ns, self.predicted_high_ns)
        if any(end is None for end in ends):
            return None
        low, high, least, most = (end for end in ends if end is not None)
        return low <= most and high >= least


@dataclass(frozen=True, slots=True)
class Verification:
    """Two runs of the same training, before and after a change."""

    before: str
    after: str
    pair: str
    """Tells this pair of runs from every other."""
    findings: tuple[Judged, ...]
    """Those that decide: `passed` unless one of them is not gone. They are those that were named. If none
    was: errors, and warnings of bytes, counts and work."""
    new: tuple[Finding, ...]
    """Findings of the run after that the run before does not have, those about the record itself left out."""
    gradients: Gradients
    saving: Saving
    quantities: tuple[Quantity, ...]
    warnings: tuple[str, ...] = ()
    """Why the runs may not be comparable."""
    also: tuple[Judged, ...] = ()
    """Others of the run before, if none was named: all that promised a saving, and all warnings. They are
    infos or rest on times, which vary from run to run, so they decide nothing. Their savings count in
    `saving`."""

    @property
    def worked_on(self) -> tuple[Judged, ...]:
        """Those that decide, and others that promised a saving and shrank, in the order of the bill."""
        others = (each for each in self.also if each.promised and each.shrank)
        return tuple(sorted((*self.findings, *others), key=lambda each: each.number))

    @property
    def passed(self) -> bool:
        """Whether all findings that decide are gone, and nothing says that gradients have become wrong."""
        broken = any(finding.family == "correctness" and finding.severity == "error" for finding in self.new)
        differ = self.gradients.answer == "differ" and not self.gradients.change_expected
        fixed = all(item.verdict == "gone" for item in self.findings)
        return fixed and not broken and not differ


def verification_to_json(verification: Verification) -> dict[str, Any]:
    """Return it as JSON values; unknown is null."""
    plain = to_plain(verification)
    return {"schema_version": VERIFICATION_VERSION, "passed": verification.passed, **plain}
