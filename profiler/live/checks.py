"""What `audit(checks=...)` asks for beyond collectives and operators: values, and at which steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torch import nn

from shardtoll.ledger import UsageError

CHECKS: Final = ("gradients", "replicas", "data")


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks that were asked for."""

    names: frozenset[str]
    every: int
    """One in so many steps is looked at, from the first on."""

    @staticmethod
    def wanted(names: Sequence[str], every: int, model: nn.Module | None) -> Checks | None:
        """Return the checks of that name; None where none is asked for.

        Raises UsageError for a name that is none, fewer than one step, or no model to check.
        """
        if isinstance(names, str):
            names = (names,)
        unknown = [name for name in names if name not in CHECKS]
        if unknown:
            raise UsageError(f"checks has {unknown[0]!r}", f"choose among {', '.join(CHECKS)}")
        if every < 1:
            raise UsageError(f"check_every is {every}", "check at least every step: give 1 or more")
        if names and model is None:
            raise UsageError(f"checks={list(names)} without a model", "give it: audit(model, checks=...)")
        return Checks(frozenset(names), every) if names else None

    def due(self, step: int) -> bool:
        """Whether the step of that number is looked at."""
        return step % self.every == 0
