"""What has to be found in an incident, and what else is true of it; needs no torch, unlike the programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expected:
    """One finding that has to be on the bill of the bad program and on none of the mended one."""

    kind: str
    place: str
    """Part of the finding's parameter, module, source line, operator or mesh dimension."""
    bytes: int | None = None
    """Message bytes per step and rank, within 1 %."""
    flops: int | None = None
    """FLOPs too many, of all ranks in a step: the figure `flops_too_many`, within 1 %."""
    toll_ns: tuple[int, int] | None = None
    """Least and most toll."""
    says: tuple[str, ...] = ()
    """Words that have to stand in its title, evidence or remedy."""


@dataclass(frozen=True, slots=True)
class Proven:
    """A further finding that is there, and why it is true."""

    kind: str
    place: str
    why: str
    twin: bool = False
    """The mended program has it too."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is known of one incident without its program: what to run, and what has to come of it."""

    name: str
    ranks: int
    expected: tuple[Expected, ...]
    """None: the program is right, and nothing but what is `proven` may be found in it."""
    proven: tuple[Proven, ...] = ()
    source: str = ""
    fabric: str | None = None
