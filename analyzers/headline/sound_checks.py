"""Which checks ran and found nothing wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import KINDS, Finding
from shardtoll.ledger.answers.traffic import SoundCheck
from shardtoll.ledger.records.value import UNASKED

OF_NO_CHECK: Final = "identical-shards"
"""A finding on how parameters began. No check looks for that, so it speaks against none."""


def sound_checks(context: Context, findings: Sequence[Finding]) -> tuple[SoundCheck, ...]:
    """Return the checks that ran and are fine, in a fixed order; see `value_checks` for those of values.

    A check is fine if no finding is of what it looks for.
    """
    kinds = {finding.kind for finding in findings} - {OF_NO_CHECK}
    checks: list[SoundCheck] = []
    checked = keep(context.notices, context.notices["kind"] == "gradients-checked")
    if not checked.empty and not any(KINDS[kind] == "correctness" for kind in kinds):
        checks.append(SoundCheck("reference"))
    if not set(context.values["kind"]) <= set(UNASKED):
        # Audits that were asked for no checks need not load what compares values.
        from shardtoll.analyzers.headline.value_checks import value_checks

        checks += value_checks(context, kinds)
    complete = 0 if "unmatched-collectives" in kinds else _complete(context)
    if complete:
        checks.append(SoundCheck("completeness", groups=complete))
    return tuple(checks)


def _complete(context: Context) -> int:
    """Return how many groups count their own collectives and have all of them on record."""
    counts = keep(context.counts, context.counts["step"].isin(context.steps))
    sound = (counts["issued"] == counts["recorded"]).fillna(False)
    of_group = sound.groupby(counts["group"]).all()
    return int(of_group.sum())
