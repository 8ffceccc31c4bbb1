"""How large a fix is, for remedies that do not say so themselves: by kind, else by the code they show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from shardtoll.ledger import Finding
from shardtoll.ledger.records.finding import Effort

FEW_LINES: Final = 8
"""Lines of code up to which a fix is a few lines."""

BY_KIND: Final[dict[str, Effort]] = {
    "constant-buffers": "a flag",
    "unused-parameter-search": "a flag",
    "data-stall": "a flag",
    "wide-dtype": "a flag",
    "pipeline-bubble": "a flag",
    "cross-node-traffic": "one line",
    "pipeline-imbalance": "a redesign",
    "expert-imbalance": "a redesign",
}
"""Kinds whose remedies change the same thing every time; the code of others shows how much it is."""

OPEN: Final = frozenset({"straggler", "below-roofline", "non-finite"})
"""Kinds whose remedies look for a cause first: the fix is as large as that turns out to be."""


def with_effort(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, the remedies among them with the effort that is known."""
    return [
        finding
        if finding.remedy is None or finding.remedy.effort is not None
        else replace(
            finding, remedy=replace(finding.remedy, effort=effort(finding.kind, finding.remedy.code))
        )
        for finding in findings
    ]


def effort(kind: str, code: str | None) -> Effort | None:
    """Return how large the fix is; None if the remedy has no code, or looks for a cause first."""
    if kind in BY_KIND:
        return BY_KIND[kind]
    if kind in OPEN or not code:
        return None
    written = [line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(written) <= 1:
        return "one line" if written else None
    return "a few lines" if len(written) <= FEW_LINES else "a redesign"
