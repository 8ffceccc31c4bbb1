"""Warnings that are no alarm: their fix saves hardly anything, or their time is within the parts' error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.ledger import KINDS, Finding, ranked

LEAST_SHARE: Final = 0.01
"""Part of a step from which the saving of a replayed fix is worth a warning."""
WHO: Final = ("straggler",)
"""Kinds that say who is at fault: the fix of one rank may save nothing until another one is fixed too."""
DIVIDED: Final = ("compute", "schedule")
"""Families whose tolls are compute and idle time, which is divided with an error in watched steps."""
TIMED: Final = ("data-stall", "checkpoint-stall")
"""Kinds whose time is measured in watched steps too."""


def as_infos(context: Context, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the bill with such warnings as information, `ranked`.

    Equal batches that a check of the data saw stay a warning: they are no matter of time.
    """
    error_ns = _error_ns(context)
    return ranked(
        replace(finding, severity="info")
        if finding.severity == "warning" and (_saves_little(context, finding) or _is_noise(finding, error_ns))
        else finding
        for finding in findings
    )


def _saves_little(context: Context, finding: Finding) -> bool:
    """Return whether replaying the fix saves too little; an upper bound proves nothing."""
    if finding.replayed is None or finding.kind in WHO:
        return False
    share = context.share_as_watched(finding.saving_ns)
    return share is not None and share < LEAST_SHARE


def _is_noise(finding: Finding, error_ns: float) -> bool:
    divided = KINDS[finding.kind] in DIVIDED and finding.kind not in TIMED and finding.confidence != "certain"
    return divided and finding.toll_ns is not None and finding.toll_ns < error_ns


def _error_ns(context: Context) -> float:
    """Return how far compute and idle time per step may be off, on the worst rank; 0 if measured."""
    rows = context.parts_rows.dropna(subset=["parts_error_ns"])
    return float(rows.groupby("rank")["parts_error_ns"].mean().max()) if len(rows) else 0.0
