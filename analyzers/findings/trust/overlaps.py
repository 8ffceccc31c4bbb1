"""Which findings bill time of the same collectives, and what they cost together at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.bounds.comm_bounds import most_free_compute_ns
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stragglers import late_bills
from shardtoll.ledger import Finding
from shardtoll.ledger.answers.overlap import Overlap

FAMILY: Final = "communication"
"""The tolls of this family are exposed time of a finding's own collectives; others hold time of no row."""

WAITING: Final = ("straggler",)
"""Tolls of the family that are waiting, whether exposed or not."""

WITHOUT_WAITS: Final = frozenset(("exposed-communication", "below-roofline"))
"""Kinds whose tolls leave out waiting that `straggler` and its like bill."""

LEAST_PART: Final = 0.02
"""Part of the tolls' sum that must be counted twice, to be worth a sentence."""

Ints = npt.NDArray[np.int64]

LEAST_SAVED: Final = 0.02
"""Part of the savings' sum that must be counted twice, to be worth a sentence."""


def overlaps(context: Context, findings: Sequence[Finding]) -> tuple[Overlap, ...]:
    """Return the sets of findings whose tolls add up to more than their collectives are exposed.

    `findings` stand in the order of the bill. Sets with an unknown exposed time are left out. Those whose
    communication would hide behind the same compute follow.
    """
    size = len(context.collectives)
    rows = {
        number: np.flatnonzero(finding.rows.mask("collectives", size))
        for number, finding in enumerate(findings, 1)
        if finding.family == FAMILY
        and finding.kind not in WAITING
        and finding.toll_ns
        and finding.rows.collectives
    }
    billed = []
    for numbers in _sets(rows, size):
        tolls = [findings[number - 1].toll_ns or 0 for number in numbers]
        without_waits = all(findings[number - 1].kind in WITHOUT_WAITS for number in numbers)
        most = _exposed_ns(context, [rows[number] for number in numbers], without_waits)
        if most is not None and max(most, *tolls) < (1 - LEAST_PART) * sum(tolls):
            billed.append(Overlap(numbers, round(max(most, *tolls))))
    covered = [set(each.findings) for each in billed]
    hidden = _behind_one_compute(context, findings)
    return (
        *billed,
        *(each for each in hidden if not any(set(each.findings) <= larger for larger in covered)),
    )


def _sets(rows: dict[int, Ints], size: int) -> list[tuple[int, ...]]:
    """Return the numbers that share rows, directly or through others, in sets of two or more."""
    owner = np.zeros(size, dtype=np.int64)
    members: dict[int, set[int]] = {}
    for number, mine in rows.items():
        joined = {number}
        for other in np.unique(owner[mine]).tolist():
            joined |= members.pop(other, set())
        members[number] = joined
        touched = [rows[each] for each in joined]
        owner[np.concatenate(touched)] = number
    return sorted(tuple(sorted(each)) for each in members.values() if len(each) > 1)


def _exposed_ns(context: Context, sets: Sequence[Ints], without_waits: bool) -> float | None:
    """Return how long these collectives are exposed per step on the worst rank; None if some are unknown.

    Only steps in which each set has rows. A finding that rests on surveyed steps alone gets no cheaper by the
    watched steps of another. As tolls are: of the timed ones among them if there are any, else for as long as
    in those. `without_waits`: without what `straggler` bills of them.
    """
    numbers = context.collectives["step"]
    steps = set.intersection(*(set(numbers.iloc[rows].dropna().unique()) for rows in sets))
    frame = context.collectives.iloc[np.unique(np.concatenate(sets))][["step", "rank", "exposed_ns"]]
    if not steps.isdisjoint(context.timed):
        steps &= set(context.timed)
    elif steps <= set(context.surveyed):
        frame = frame.assign(exposed_ns=context.in_surveyed["exposed_ns"].reindex(frame.index))
    if without_waits:
        billed = late_bills.billed_ns(context).reindex(frame.index).fillna(0)
        frame = frame.assign(exposed_ns=(frame["exposed_ns"] - billed.astype("Int64")).clip(lower=0))
    frame = frame[frame["step"].isin(steps).to_numpy(dtype=bool)]
    if frame.empty or frame["exposed_ns"].isna().any():
        return None
    by_rank = frame.groupby("rank")["exposed_ns"].sum()
    return float(by_rank.max()) / len(steps)


def _behind_one_compute(context: Context, findings: Sequence[Finding]) -> list[Overlap]:
    """Return the findings whose communication would hide behind the same compute, if that is too short."""
    numbers = tuple(
        number
        for number, each in enumerate(findings, start=1)
        if each.kind == "exposed-communication" and each.saving_ns
    )
    free = most_free_compute_ns(context)
    savings = [findings[number - 1].saving_ns or 0 for number in numbers]
    if len(numbers) < 2 or free is None or sum(savings) <= free + LEAST_SAVED * sum(savings):
        return []
    return [Overlap(numbers, round(max(free, *savings)), saved=True)]
