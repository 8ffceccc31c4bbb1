"""The headline if communication costs most: waiting is held against moving data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS, ROOTED
from shardtoll.analyzers.findings.stages import pipeline_imbalance
from shardtoll.analyzers.findings.stages.pipeline_bubble import message_waits
from shardtoll.analyzers.findings.stragglers.late_bills import named
from shardtoll.analyzers.findings.stragglers.lateness import waits
from shardtoll.analyzers.headline import idle as headline_idle
from shardtoll.analyzers.headline import lower_bound
from shardtoll.analyzers.headline import moving as headline_moving
from shardtoll.analyzers.headline.advice import (
    best_of,
    first_of,
)
from shardtoll.analyzers.headline.late_ranks import last_in, late_ranks, warned
from shardtoll.analyzers.headline.said import CANNOT, LATE, LEAST_SAID, LEAST_SHARE, Said
from shardtoll.analyzers.headline.shares import brief_of, little_compute, of_step, small
from shardtoll.analyzers.pipelines.pipeline_shape import shape
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Finding
from shardtoll.ledger.words.human import duration, percent, ranks, rate
from shardtoll.ledger.words.human import plural as times

TELLING: Final = 0.2
"""Part of exposed communication from which a lower bound of the waiting in it is worth the words."""

LEAST_UNKNOWN: Final = 0.01
"""Part of exposed communication from which it is worth the words that waiting or moving is unknown."""

OUTWEIGHS: Final = 2.0
"""Times what the slowest stage costs that a bubble must cost to be named in its place."""

COLUMNS: Final = (
    *("op", "match_id", "exposed_ns", "transfer_ns", "busbw_gbps", "floor_ns", "expected_ns", "step"),
    *("duration_ns", "message_bytes", "group_size"),
)
"""Columns of a collective that are read."""

REFUTED_FACTOR: Final = 0.9
"""Transfers faster than that part of their floor refute it: what is expected says nothing then."""


def of_communication(context: Context, share: float, findings: Sequence[Finding]) -> Said:
    """Return the sentence on communication, which takes that `share` of all steps.

    In this order: too little to be at fault; not divided into waiting and moving; waiting between stages.
    Then waiting for late ranks, moving data while a rank is late too, and moving data alone.
    """
    brief = brief_of(context, share)
    if share < LEAST_SHARE:
        return Said(small(context, share))
    frame = _of_bars(context)
    split = keep(frame, frame["transfer_ns"].notna())
    exposed, split_ns = float(frame["exposed_ns"].sum()), float(split["exposed_ns"].sum())
    if exposed == 0 or split_ns < exposed / 2:
        return _undivided(context, frame, brief, findings)
    moving = float(np.minimum(split["exposed_ns"], split["transfer_ns"]).sum())
    waited = split_ns - moving
    unknown = 1 - split_ns / exposed
    part = _Parts(share * waited / exposed, share * moving / exposed)
    rest = f", {percent(share * unknown)} unknown" if unknown >= LEAST_UNKNOWN else ""
    bubbles = float(message_waits(context)["lost_ns"].reindex(frame.index).sum())
    if waited > moving:
        brief = f"waiting takes {of_step(context, part.waiting)}"
        if bubbles > waited / 2:
            between = f", {percent(share * bubbles / exposed)} between stages"
            advice = best_of(findings, headline_idle.STAGES)
            head, place = _stages(context, findings, advice)
            return Said(head, (f"; {brief}", between), place, needed=place == advice)
        return late_ranks(context, brief, (part.besides("moving data", part.moving), rest), findings)
    rate, factor = _rate(split, moving)
    of_moving = f"{of_step(context, part.moving)}{little_compute(context)}"
    brief = f"moving data takes {of_moving}"
    moves = (rate, part.besides("waiting", part.waiting), rest)
    late = warned(context, findings)
    if late is not None:
        # The rank that waits has the waiting, every rank the moving: over all ranks that looks like more.
        rank, words = late
        first = headline_moving.most_expensive(findings)
        if first is not None and first.kind in LATE:
            head = f"Rank {rank} is late: {words}; {brief}"
        else:
            head = f"Moving data costs most: {of_moving}; rank {rank} is late too: {words}"
        advice = first_of(findings, LATE, rank)
        return Said(head, moves, advice, also=first_of(findings, headline_moving.MOVING))
    head, kinds = headline_moving.clause(context, share, factor, findings, part.waiting)
    # Needless messages have an order, which says more than a rate.
    needed = not set(kinds) <= set(headline_moving.HEADS)
    said = Said(f"{head}: {brief}", moves, *headline_moving.advised(findings, kinds), needed=needed)
    if kinds == LATE:
        said = replace(said, also=first_of(findings, headline_moving.MOVING))
    return said


def _of_bars(context: Context) -> pd.DataFrame:
    """Return the exposed collectives of the steps that the bars show; columns `COLUMNS`.

    If most of their time is not divided into waiting and moving: those of all steps that can be compared.
    """
    frame = context.in_alike[list(COLUMNS)]
    frame = keep(frame, frame["exposed_ns"].notna() & (frame["exposed_ns"] > 0))
    shown = keep(frame, frame["step"].isin(context.told_rows["step"].unique()))
    divided_ns = shown["exposed_ns"].where(shown["transfer_ns"].notna()).sum()
    return shown if len(shown) and divided_ns >= shown["exposed_ns"].sum() / 2 else frame


class _Parts(Struct, frozen=True):
    """Shares of the steps: waiting for other ranks, and moving data."""

    waiting: float
    moving: float

    @staticmethod
    def besides(name: str, share: float) -> str:
        """Return the smaller part after the larger one, as `, moving data 4.4 %`; empty if it is nothing."""
        return f", {name} {percent(share)}" if share >= LEAST_SAID else ""


def _stages(context: Context, findings: Sequence[Finding], advice: int | None) -> tuple[str, int | None]:
    """Return what keeps stages waiting, and the place of its finding."""
    head = "Pipeline stages wait for each other, not for the network"
    uneven = pipeline_imbalance.worst(context)
    late = None if advice is None else findings[advice]
    schedule = first_of(findings, ("pipeline-bubble",))
    toll = 0 if schedule is None else findings[schedule].toll_ns or 0
    excess = 0.0 if uneven is None else uneven.excess_ns
    form = shape(context)
    if form is not None and (late is None or late.kind != "straggler") and toll > OUTWEIGHS * excess:
        few = f"{head}: {form.words} leave each without work for {percent(form.ideal_share)} of the step"
        return (few if uneven is None else f"{few}, and {_uneven(uneven)}"), schedule
    if uneven is not None:
        return f"{head}: {pipeline_imbalance.clause(uneven)}", advice
    if late is None or late.kind != "straggler" or len(late.ranks) != 1:
        return head, advice
    return f"{head}: rank {late.ranks[0]} is late, which costs more than the schedule", advice


def _uneven(uneven: pipeline_imbalance.Imbalance) -> str:
    """Return `rank 7 computes 174 ms more than the mean stage`."""
    verb = "computes" if uneven.verb == "compute" else "works"
    return f"{ranks(uneven.slowest[:1])} {verb} {duration(uneven.excess_ns)} more than the mean stage"


def _undivided(context: Context, frame: pd.DataFrame, brief: str, findings: Sequence[Finding]) -> Said:
    """Return the sentence if waiting and moving data cannot be divided, with what is known anyway.

    It has advice only if it names a rank: a doubt belongs to no finding that costs time.
    """
    run = context.ledger.run
    seen, world = len(run.ranks_seen), run.world_size
    peers = float(frame.loc[frame["op"].isin(PEER_OPS), "exposed_ns"].sum())
    if peers > float(frame["exposed_ns"].sum()) / 2:
        return Said(f"{CANNOT}, as most sends and receives match no other end: {brief}")
    if run.is_forecast:
        return Said(f"Forecast with every rank on time: {brief}")
    if seen < world:
        why = f"only {seen} of {times(world, 'rank')} {'was' if seen == 1 else 'were'} recorded"
        rows = waits(context)
        rows = keep(rows, rows["at_least"])
        waited = float(rows["waited_ns"].sum()) >= TELLING * float(frame["exposed_ns"].sum())
        culprits = named(context, rows) if waited else []
        if culprits:
            often, _, most = last_in(context, rows, culprits[0])
            return Said(
                f"Rank {culprits[0]} is last in {often} of the {seen} recorded ranks (of {world:,}), and "
                f"others wait at least {duration(most)} per step for it: {brief}",
                advice=first_of(findings, LATE, culprits[0]),
            )
        bound = lower_bound.of(frame)
        if bound is not None and bound.excludes:
            return Said(f"Neither a slow network nor long waiting, though {why}: {brief}{bound.words}")
        return Said(f"{CANNOT}, as {why}: {brief}{bound.words if bound else ''}; record all ranks")
    if context.collectives["skew_ns"].notna().any():
        return Said(f"{CANNOT}, as the hosts' clocks disagree: {brief}")
    return Said(f"{CANNOT}, as collectives of the ranks could not be matched: {brief}")


def _rate(split: pd.DataFrame, moving: float) -> tuple[str, float | None]:
    """Return ` at 11 GB/s, 1.3 times the expected time` as far as known, and the factor.

    If less than half of the moving time has a known rate, the whole has none.
    """

    def share(rows: pd.DataFrame) -> float:
        return float(np.minimum(rows["exposed_ns"], rows["transfer_ns"]).sum()) / moving if moving else 0.0

    # Ranks may come late to a rooted operation that waits for none of them: its rate is a lower bound.
    rooted = split["op"].isin(ROOTED)
    rates = keep(split, split["busbw_gbps"].notna() & ~rooted)
    if share(rates) < 0.5:
        return (f", {percent(1 - share(rates))} of it at an unknown rate" if moving else ""), None
    words = f" at {rate(float(rates['busbw_gbps'].median()))}"
    known = (split["expected_ns"] > 0) & (split["transfer_ns"] > 0) & split["match_id"].notna()
    # The fastest rank of a rooted operation does not tell how long the whole took.
    judged = keep(split, known & ~rooted)
    if judged.empty or share(judged) < 0.5:
        return words, None
    by_match = judged[["match_id", "transfer_ns", "floor_ns", "expected_ns"]].groupby("match_id")
    took = float(by_match["transfer_ns"].min().sum())
    known_first = by_match[["floor_ns", "expected_ns"]].first()
    if took < REFUTED_FACTOR * float(known_first["floor_ns"].sum()):
        # Floors that others of the same job refute say nothing of these either.
        return words, None
    factor = took / float(known_first["expected_ns"].sum())
    return f"{words}, {factor:.2g} times the expected time", factor
