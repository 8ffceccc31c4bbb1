"""The headline if waiting for late ranks costs most, and the late rank that is named in passing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.crowded import Crowded, crowded
from shardtoll.analyzers.context.fill import LEAST_LATE_NS
from shardtoll.analyzers.findings.origins.origin import origins
from shardtoll.analyzers.findings.stragglers import late_remedies, origin_cause
from shardtoll.analyzers.findings.stragglers.late_bills import bills, named
from shardtoll.analyzers.findings.stragglers.late_cause import cause_of, uncertain
from shardtoll.analyzers.findings.stragglers.late_chance import alarming, by_chance
from shardtoll.analyzers.findings.stragglers.late_habit import waiting
from shardtoll.analyzers.findings.stragglers.lateness import host_computes, late_to, waits
from shardtoll.analyzers.headline import moving as headline_moving
from shardtoll.analyzers.headline.advice import (
    WIDTH,
    first_of,
    launching,
    orders,
)
from shardtoll.analyzers.headline.moving import HEADS
from shardtoll.analyzers.headline.said import LATE, Said
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Finding
from shardtoll.ledger.records.one_cause import own_reason
from shardtoll.ledger.words.human import duration, others, plural

MOST_OF_WAIT: Final = 0.8
"""Part of the waiting from which what a late rank does longer is all of it."""

WORTH_NAMING: Final = 0.05
"""Toll of a warning, as a share of exposed communication, from which it is named after shared cores."""

MOST_OF_EXPOSED: Final = 0.5
"""Part of the exposed communication from which the tolls of a kind are said before the sharing of cores."""


def late_ranks(context: Context, brief: str, more: tuple[str, ...], findings: Sequence[Finding]) -> Said:
    """Return the sentence if waiting for late ranks costs most."""
    shared = crowded(context)
    slept = [bill.rank for bill in bills(context)[1] if bill.rank is not None] if shared else []
    if shared is not None and not slept:
        return Said(*_of_shared_cores(context, shared, brief, more, findings))
    if shared is not None:
        more = (*more, f"; {_both(shared)}")
    slow = origins(context)
    if slow:
        also = f", and {plural(len(slow) - 1, 'other rank')} too" if len(slow) > 1 else ""
        who = origin_cause.clause(slow[0])
        why = origin_cause.why(context, slow[0], figures=False)
        longer = slow[0].before_ns - slow[0].without_ns
        by = f", by {duration(longer)} per step" if slow[0].steady and longer > 0 else ""
        place = first_of(findings, LATE, slow[0].rank)
        blamed = f"R{who[1:]}{by}{also}: {why}; the network is not at fault"
        return Said(blamed, (f"; {brief}", *more), place)
    rows = waits(context)
    culprits = slept or (named(context, rows) if not rows.empty else [])
    if not culprits:
        head = f"Ranks take turns in being late; the network is not at fault: {brief}"
        return Said(head, more, first_of(findings, LATE))
    culprit = culprits[0]
    late = keep(rows, (rows["late_rank"] == culprit) & (rows["late_ns"] >= LEAST_LATE_NS))
    _, least, most = last_in(context, rows, culprit)
    head = f"Rank {culprit} is late, not the network"
    place = first_of(findings, LATE, culprit)
    own = own_reason(findings, culprit)
    if launching(findings, place):
        head, least = f"Hosts launch kernels too slowly, rank {culprit}'s most", 0
    elif uncertain(context, late):
        head = f"Rank {culprit} is late, or only began to record later"
    elif own is None and by_chance(context, rows, culprit) is not None:
        # Then the bill has it as information. A finding that says why it is late says that it is no chance.
        head = f"Rank {culprit} is late (perhaps by chance), not the network"
    wait = f"{duration(least)} to {duration(most)}" if least else f"up to {duration(most)}"
    wait = duration(most) if least >= most * 0.8 else wait
    base = f"{head}: {others(context.ledger.run.world_size - 1, 'wait')} {wait} per step for it"
    # An order says why the rank is late, if there is room for one.
    taken = len(base) + len(brief) + 5
    unsaid = own is None and not any(taken + len(order) <= WIDTH for order in orders(findings, place))
    why = _why(context, culprit, late, most) if unsaid and not uncertain(context, late) else ""
    return Said(base, (f"; {brief}", why, *more), place, because=own)


def _why(context: Context, rank: int, late: pd.DataFrame, waited_ns: float) -> str:
    """Return `; meanwhile rank 1 is outside operators`; empty if nothing tells why it is late.

    A second figure for the same time is said only if it is much less than the waiting: then it is a part.
    """
    cause = cause_of(context, late)
    if cause.part is None or cause.part not in cause.more_ns:
        return ""
    words = late_remedies.words(cause.part, on_cpu=host_computes(context)).partition(" (")[0]
    more_ns = cause.more_ns[cause.part]
    if more_ns >= MOST_OF_WAIT * waited_ns:
        return f"; meanwhile rank {rank} spends longer {words}"
    return f"; rank {rank} spends {duration(more_ns)} of that {words}"


def last_in(context: Context, rows: pd.DataFrame, rank: int) -> tuple[str, float, float]:
    """Return in how many collectives the rank is last, and the least and most that others wait per step."""
    late = keep(rows, (rows["late_rank"] == rank) & (rows["late_ns"] >= LEAST_LATE_NS))
    once = late_to(rows)
    return (
        f"{len(late_to(late))} of {plural(len(once), 'collective')}",
        *waiting(context, late, rank),
    )


def warned(context: Context, findings: Sequence[Finding]) -> tuple[int, str] | None:
    """Return who is late and its clause, if the bill warns of it or begins with it; None if it does not."""
    rows, billed = bills(context)
    first = headline_moving.most_expensive(findings)
    blamed = first.ranks if first is not None and first.kind == "straggler" else ()
    for bill in billed:
        toll = bill.line.figures["waited_ns"]
        if bill.rank is None or not toll:
            continue
        if bill.origin is not None:
            return bill.rank, origin_cause.clause(bill.origin)
        if blamed == (bill.rank,) or alarming(context, toll, rows, bill.rank):
            often, _, most = last_in(context, rows, bill.rank)
            count = context.ledger.run.world_size - 1
            who = "others wait" if count > 1 else others(count, "wait")
            words = f"{who} for it in {often}, up to {duration(most)} per step"
            return bill.rank, words
    return None


def _both(shared: Crowded) -> str:
    """Return that the ranks share cores."""
    return f"{shared.ranks} ranks share {plural(shared.cores, 'CPU core')} and delay each other"


def _of_shared_cores(
    context: Context, shared: Crowded, brief: str, more: tuple[str, ...], findings: Sequence[Finding]
) -> tuple[str, tuple[str, ...]]:
    """Return the sentence, and what may follow it as far as there is room.

    `brief`: how much waiting takes; `more`: how much moving data does. Tolls hold waiting that
    ends with the sharing of cores. A kind comes first if its tolls are at least `MOST_OF_EXPOSED` of what is
    exposed on the worst rank.
    """
    warned = [
        number
        for number, each in enumerate(findings, 1)
        if each.severity == "warning" and each.toll_ns and each.saving_ns != 0
    ]
    exposed = float(context.told_rows.groupby("rank")["exposed_comm_ns"].mean().max())
    if warned:
        kind = findings[warned[0] - 1].kind
        tolls = sum(
            findings[number - 1].toll_ns or 0 for number in warned if findings[number - 1].kind == kind
        )
        if kind in HEADS and tolls >= MOST_OF_EXPOSED * exposed:
            head = f"{HEADS[kind]} most: {brief}{''.join(more)}; start with finding {warned[0]}"
            return f"{head}. Also, {_both(shared)}", ()
    worth = [number for number in warned if (findings[number - 1].toll_ns or 0) >= WORTH_NAMING * exposed]
    then = f", then see finding {worth[0]} ({findings[worth[0] - 1].kind})" if worth else ""
    return f"The network is not at fault: {_both(shared)}; {brief}", (*more, f"; give each rank a core{then}")
