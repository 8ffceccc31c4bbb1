"""Limits of a budget that a run exceeds: data that the judging makes and the renderers show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from shardtoll.ledger.foreign.plain import to_plain

SCHEMA_VERSION: Final = 1

Answer: TypeAlias = Literal["over", "cannot be told"]


@dataclass(frozen=True, slots=True)
class Call:
    """Collectives of one rank and step that have the same cause."""

    op: str
    count: int
    wire_bytes: int | None
    """All of them together; None if one of them is unknown."""
    exposed_ns: int | None
    """As `wire_bytes`."""
    implicit: bool | None
    group: str
    mesh_dim: str | None
    phase: str
    module: str | None
    parameter: str | None
    caused_by_op: str | None
    placements_from: str | None
    placements_to: str | None
    source: str | None


@dataclass(frozen=True, slots=True)
class Overrun:
    """One limit that is exceeded, or whose answer is unknown."""

    limit_name: str
    """The key of the budget: `max_wire_bytes`, `no_implicit`, `forbid`, ..."""
    place: str | None
    """The section as `module "layers.*"`, a pattern of `no_implicit`, a kind of `forbid`; None: the step."""
    answer: Answer
    limit: int | float
    found: int | float | None
    """On the rank and in the step with the largest value. If the answer is unknown: the known part of the
    value."""
    why: str
    """In words, with the numbers."""
    step: int | None
    rank: int | None
    source: str | None
    """The line of the user's code that contributes most; None if unknown."""
    calls: tuple[Call, ...] = ()
    """Calls that make up the figure there, the largest first; not all if there are many."""
    calls_left_out: int = 0
    section: str | None = None
    """The section, as `module "layers.*"`, in which `no_implicit` or `forbid` stands; None: at the top."""


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """Result of judging a run by a budget."""

    run: str
    """The judged run, as the user named it."""
    budget: str
    overruns: tuple[Overrun, ...]
    warnings: tuple[str, ...]
    """Facts that exceed no limit and should be known: patterns that name nothing, ranks not seen."""
    limits: int
    """How many limits were judged."""
    steps: int
    """How many steps were judged."""
    ranks: int
    unknown_allowed: bool
    """Whether an unknown answer counts as within the budget."""

    @property
    def passed(self) -> bool:
        """Whether nothing is over."""
        return not self.failed

    @property
    def failed(self) -> tuple[Overrun, ...]:
        """The overruns that make the check fail."""
        return tuple(overrun for overrun in self.overruns if not self.excused(overrun))

    def excused(self, overrun: Overrun) -> bool:
        """Whether an overrun does not make the check fail."""
        return self.unknown_allowed and overrun.answer == "cannot be told"


def check_to_json(check: BudgetCheck) -> dict[str, Any]:
    """Return it as JSON values; unknown is None."""
    return {"schema_version": SCHEMA_VERSION, "passed": check.passed, **to_plain(check)}
