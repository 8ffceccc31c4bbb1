"""Warnings that are no alarm: their fix saves hardly anything, or their time is within the parts' error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.divided import largest_error_ns
from shardtoll.analyzers.whatif.edits.remedies import edit_of
from shardtoll.analyzers.whatif.savings import replayer
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

    Equal batches stay a warning: they are no matter of time. So do fixes that save enough together: two ranks
    that stall in the same steps hide each other's cost.
    """
    error_ns = largest_error_ns(context.parts_rows)
    little = [finding for finding in findings if _saves_little(context, finding, finding.saving_high_ns)]
    hidden = [finding for finding in findings if _saves_little(context, finding, finding.saving_ns)]
    if little and len(hidden) > 1 and _is_worth(context, _together_ns(context, hidden)):
        little = []
    return ranked(
        replace(finding, severity="info")
        if finding in little or (finding.severity == "warning" and _is_noise(finding, error_ns))
        else finding
        for finding in findings
    )


def _saves_little(context: Context, finding: Finding, end_ns: int | None) -> bool:
    """Return whether replay says that the fix saves too little, by this end of its band or else its middle.

    An upper bound proves nothing.
    """
    if finding.severity != "warning" or finding.replayed is None or finding.kind in WHO:
        return False
    saving_ns = finding.saving_ns if end_ns is None else end_ns
    return saving_ns is not None and not _is_worth(context, saving_ns)


def _is_worth(context: Context, saving_ns: float) -> bool:
    share = context.share_as_watched(saving_ns)
    return share is None or share >= LEAST_SHARE


def _together_ns(context: Context, findings: Sequence[Finding]) -> float:
    """Return what the fixes of all these findings save together, by replay."""
    made = replayer(context)
    edits = [edit for finding in findings if (edit := edit_of(context, finding)) is not None]
    return made.saved(edits).high_ns if made is not None and edits else 0.0


def _is_noise(finding: Finding, error_ns: float) -> bool:
    if finding.kind == "duplicated-data" or finding.figure("ranks_of_equal_data"):
        return False
    divided = KINDS[finding.kind] in DIVIDED and finding.kind not in TIMED and finding.confidence != "certain"
    return divided and finding.toll_ns is not None and finding.toll_ns < error_ns
