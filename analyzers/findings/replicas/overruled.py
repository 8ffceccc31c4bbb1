"""Results of an exact check of the gradients, which settle weaker invariants and refute guesses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.memo import once
from shardtoll.ledger import Cause, Finding

SETTLED: Final = ("missing-reduction", "wrong-scale", "not-finite", "doubled-reduction")
"""Causes that mean the same whether replicas or one device's run show them."""


@once
def checked_right(context: Context) -> frozenset[str]:
    """Return the parameters whose gradient every check against one device's run found right.

    On all ranks that hold them: what is each rank's own, as an expert, then need not be equal.
    """
    table = context.parameters
    is_right = table["checked_right"].fillna(False).astype(bool)
    return frozenset(str(name) for name, right in is_right.groupby(table["name"]).all().items() if right)


def without_repeated(exact: Sequence[Finding], derived: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those of wrong gradients that an exact one tells of with the same cause."""
    exact_causes = {
        (name, finding.cause)
        for finding in exact
        if finding.kind == "wrong-gradient"
        for name in _names(finding)
    }
    return [finding for finding in derived if not _repeats(finding, exact_causes)]


def _repeats(finding: Finding, exact_causes: set[tuple[str | None, Cause | None]]) -> bool:
    if finding.kind != "wrong-gradient" or finding.cause not in SETTLED:
        return False
    return {(name, finding.cause) for name in _names(finding)} <= exact_causes


def _names(finding: Finding) -> tuple[str | None, ...]:
    return finding.parameters or (finding.where.parameter,)
