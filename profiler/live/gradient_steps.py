"""What gradient checks found in several steps: one finding for each parameter and cause."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Final

from shardtoll.ledger import Evidence, Finding

_MEASURED: Final = re.compile(r"\(off by [^)]*\)|off by .*$")
"""What a title says of sizes, which are others in each step."""
STEPS_SHOWN: Final = 16


class GradientSteps:
    """The findings so far, in the order in which they were first made."""

    def __init__(self) -> None:
        self._first: dict[Hashable, Finding] = {}
        self._steps: dict[Hashable, list[int]] = {}

    def add(self, findings: Sequence[Finding], step: int | None) -> None:
        """Add what one check found; `step` None outside of steps."""
        for finding in findings:
            cause = _MEASURED.sub("", finding.title)
            key = (finding.where, finding.ranks, finding.count, cause)
            self._first.setdefault(key, finding)
            steps = self._steps.setdefault(key, [])
            if step is not None and step not in steps:
                steps.append(step)

    def findings(self) -> tuple[Finding, ...]:
        """Return each with its steps; its numbers are those of the first."""
        return tuple(_with(finding, self._steps[key]) for key, finding in self._first.items())


def _with(finding: Finding, steps: Sequence[int]) -> Finding:
    if not steps:
        return finding
    shown = ", ".join(map(str, steps[:STEPS_SHOWN]))
    more = f" and {len(steps) - STEPS_SHOWN} more" if len(steps) > STEPS_SHOWN else ""
    told = Evidence("wrong in step" if len(steps) == 1 else "wrong in steps", f"{shown}{more}")
    return replace(finding, evidence=(*finding.evidence, told))
