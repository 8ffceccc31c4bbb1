"""What an exact check of the gradients settles: invariants that said less, and guesses that it refutes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.memo import once
from shardtoll.ledger import Finding

CAUSES: Final = ("reduction", "missing"), ("wrong scale",), ("NaN or infinity",), ("times too large",)
"""Words of titles, all of which say one cause."""


@once
def checked_right(context: Context) -> frozenset[str]:
    """Return the parameters whose gradient every check against one device's run found right.

    On all ranks that hold them: what is each rank's own, as an expert, then need not be equal.
    """
    table = context.parameters
    told = table["checked_right"].fillna(False).astype(bool)
    return frozenset(str(name) for name, right in told.groupby(table["name"]).all().items() if right)


def without_repeated(exact: Sequence[Finding], found: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those of wrong gradients that an exact one tells of with the same cause."""
    told = {
        (name, cause)
        for finding in exact
        if finding.kind == "wrong-gradient"
        for name in _names(finding)
        for cause in _causes(finding)
    }
    return [finding for finding in found if not _repeats(finding, told)]


def _repeats(finding: Finding, told: set[tuple[str, tuple[str, ...]]]) -> bool:
    if finding.kind != "wrong-gradient":
        return False
    causes = _causes(finding)
    return bool(causes) and {(name, cause) for name in _names(finding) for cause in causes} <= told


def _causes(finding: Finding) -> list[tuple[str, ...]]:
    return [cause for cause in CAUSES if all(word in finding.title for word in cause)]


def _names(finding: Finding) -> list[str]:
    named = [str(each.value) for each in finding.evidence if each.label == "parameters"]
    return named[0].split(", ") if named else [str(finding.where.parameter)]
