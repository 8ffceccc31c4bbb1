"""Which findings would hide more communication than the step's compute can hide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.analyzers.bounds.comm_bounds import most_free_compute_ns
from shardtoll.analyzers.context.context import Context
from shardtoll.ledger import Finding
from shardtoll.ledger.answers.overlap import Overlap

LEAST_PART: Final = 0.02
"""Part of the savings' sum that must be counted twice, to be worth a sentence."""


def behind_one_compute(context: Context, findings: Sequence[Finding]) -> list[Overlap]:
    """Return the findings whose communication would hide behind the same compute, if that is too short."""
    numbers = tuple(
        number
        for number, each in enumerate(findings, start=1)
        if each.kind == "exposed-communication" and each.saving_ns
    )
    free = most_free_compute_ns(context)
    savings = [findings[number - 1].saving_ns or 0 for number in numbers]
    if len(numbers) < 2 or free is None or sum(savings) <= free + LEAST_PART * sum(savings):
        return []
    return [Overlap(numbers, round(max(free, *savings)), saved=True)]
