"""What a budget was exceeded by: data that the judging makes and the renderers show."""

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
    """All of them together; None where one's is not known."""
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
    """One limit that is exceeded, or of which that cannot be told."""

    limit_name: str
    """The key of the budget: `max_wire_bytes`, `no_implicit`, `forbid`, ..."""
    place: str | None
    """The section as `module "layers.*"`, a pattern of `no_implicit`, a kind of `forbid`; None: the step."""
    answer: Answer
    limit: int | float
    found: int | float | None
    """On the rank and in the step where it is largest; where it cannot be told, what is known of it."""
    why: str
    """In words, with the numbers."""
    step: int | None
    rank: int | None
    source: str | None
    """The line of the user's code that contributes most; None unknown."""
    calls: tuple[Call, ...] = ()
    """What the figure is made of there, most first; not all where there are many."""
    calls_left_out: int = 0
    section: str | None = None
    """The section, as `module "layers.*"`, in which `no_implicit` or `forbid` stands; None: at the top."""


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """What came of holding a run to a budget."""

    run: str
    """What was judged, as the user named it."""
    budget: str
    overruns: tuple[Overrun, ...]
    warnings: tuple[str, ...]
    """What does not exceed a limit and should be known: patterns that name nothing, ranks not seen."""
    limits: int
    """How many limits were judged."""
    steps: int
    """How many steps were judged."""
    ranks: int
    unknown_allowed: bool
    """Whether what cannot be told counts as within the budget."""

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
