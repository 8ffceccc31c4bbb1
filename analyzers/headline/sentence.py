"""The sentence `Report.headline`: is the network at fault, a rank, a pipeline's stage, or the host.

`Report.verdict`, which renderers show first, puts errors before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.crowded import crowded
from shardtoll.analyzers.context.fill import LEAST_LATE_NS
from shardtoll.analyzers.context.peers import PEER_OPS, ROOTED
from shardtoll.analyzers.findings.stages import pipeline_imbalance
from shardtoll.analyzers.findings.stages.pipeline_bubble import message_waits
from shardtoll.analyzers.findings.stragglers import origin_cause
from shardtoll.analyzers.findings.stragglers.late_bills import bills, named
from shardtoll.analyzers.findings.stragglers.late_cause import uncertain
from shardtoll.analyzers.findings.stragglers.late_chance import alarming, by_chance
from shardtoll.analyzers.findings.stragglers.late_habit import waiting
from shardtoll.analyzers.findings.stragglers.lateness import late_to, waits
from shardtoll.analyzers.findings.stragglers.origin import origins
from shardtoll.analyzers.findings.trust import counted
from shardtoll.analyzers.headline import copies as headline_copies
from shardtoll.analyzers.headline import idle as headline_idle
from shardtoll.analyzers.headline import lower_bound
from shardtoll.analyzers.headline import moving as headline_moving
from shardtoll.analyzers.headline.step_words import lead, step_word
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Finding
from shardtoll.ledger.records.levels import watched_steps
from shardtoll.ledger.words.human import duration, percent, rate
from shardtoll.ledger.words.human import plural as times

LEAST_SHARE: Final = 0.05
"""Share of all ranks' steps below which communication is not the matter."""

TELLING: Final = 0.2
"""Part of exposed communication from which a lower bound of the waiting in it is worth the words."""

LEAST_UNTOLD: Final = 0.01
"""Part of exposed communication below which it is not worth the words that it cannot be told which."""

LACKING: Final = 0.1
"""Share of the issued collectives above which those not on record, or not timed, forbid a verdict."""

COLUMNS: Final = (
    *("op", "match_id", "exposed_ns", "transfer_ns", "busbw_gbps", "floor_ns", "expected_ns"),
    *("duration_ns", "message_bytes", "group_size"),
)
"""What is looked at of a collective."""

_UNTOLD: Final = "Network or a late rank cannot be told: in no step is exposed communication known"

REFUTED_FACTOR: Final = 0.9
"""Transfers faster than that part of their floor refute it: what is expected says nothing then."""


def sentence(context: Context, findings: Sequence[Finding] = ()) -> str | None:
    """Return the sentence; None where no step was recorded, so that there is nothing to say.

    Shares of waiting and moving are over all seen ranks together, as the late rank itself waits least.
    `findings`, in the order of the bill, are those it stands above: it does not contradict the first.
    """
    if context.timed_rows.empty or not context.step_ns:
        return None
    verdict = _verdict(context, findings)
    begins = lead(context)
    return f"{begins}{verdict[0].lower()}{verdict[1:]}" if begins else verdict


def _verdict(context: Context, findings: Sequence[Finding]) -> str:
    rows = context.told_rows
    total = float(_own_ns(context, rows).sum())
    share = float(rows["exposed_comm_ns"].sum()) / total if total > 0 else None
    idle = headline_copies.clause(context) or headline_idle.clause(context)
    unknown = _blind(context) or _off_record(context) or (_UNTOLD if share is None else None)
    if unknown is not None or share is None:
        unknown = unknown or _UNTOLD
        return f"{unknown}." if idle is None else f"{idle}; {unknown[0].lower()}{unknown[1:]}."
    if idle is not None:
        return f"{idle}; {_brief(context, share)}."
    besides = f"{headline_copies.besides(context)}{headline_idle.besides(context)}"
    return f"{_sentence(context, share, findings)}{besides}."


def _own_ns(context: Context, rows: pd.DataFrame) -> pd.Series[float]:
    """Return how long steps took, as the table of ranks shows it: capture is left out of watched ones."""
    took: pd.Series[float] = rows["duration_ns"].astype("float64")
    watched = bool(watched_steps(context.ledger.tables["steps"]))
    return took - rows["capture_ns"].astype("float64") if watched else took


def _sentence(context: Context, share: float, findings: Sequence[Finding]) -> str:
    fact = _fact(context, share)
    if share < LEAST_SHARE:
        doubt = _untold(context, share)
        if doubt is not None:
            return f"Network or a late rank cannot be told: {_brief(context, share)}, {doubt}"
        head = "Neither network nor a late rank is at fault, communication is hidden or small"
        return f"{'No communication on record' if context.collectives.empty else head}: {fact}"
    frame = context.in_alike[list(COLUMNS)]
    frame = keep(frame, frame["exposed_ns"].notna() & (frame["exposed_ns"] > 0))
    split = keep(frame, frame["transfer_ns"].notna())
    exposed, split_ns = float(frame["exposed_ns"].sum()), float(split["exposed_ns"].sum())
    if exposed == 0 or split_ns < exposed / 2:
        return (
            f"Network or a late rank cannot be told: {_brief(context, share)}; {_why_unknown(context, frame)}"
        )
    moving = float(np.minimum(split["exposed_ns"], split["transfer_ns"]).sum())
    waited = split_ns - moving
    untold = 1 - split_ns / exposed
    unknown = f", {percent(untold)} cannot be told" if untold >= LEAST_UNTOLD else ""
    rate, factor = _rate(split, moving)
    parts = (
        f"of this {percent(waited / exposed)} waiting, {percent(moving / exposed)} moving data{rate}{unknown}"
    )
    bubbles = float(message_waits(context)["lost_ns"].sum())
    if waited > moving and bubbles > waited / 2:
        between = f"{percent(bubbles / exposed)} of it waiting between stages"
        return f"{_stages(context)}; {_brief(context, share)}, {between}"
    if waited > moving:
        return _late(context, _brief(context, share), fact, parts)
    late = _warned(context, findings)
    if late is not None:
        # The rank that waits has the waiting, every rank the moving: over all ranks that looks like more.
        return f"Both a late rank and moving data cost: {late}; {_brief(context, share)}, {parts}"
    return f"{headline_moving.clause(context, share, factor, findings)}: {fact}; {parts}"


def _blind(context: Context) -> str | None:
    """Return that there is no device timeline, and how many collectives were issued; None if there is one."""
    if context.surveyed or "no-device-timeline" not in set(context.notices["kind"]):
        return None
    issued = times(len(context.in_steps), "collective")
    return (
        f"Without a device timeline compute, exposed communication and idle time are unknown; {issued} "
        f"{'was' if len(context.in_steps) == 1 else 'were'} issued"
    )


def _off_record(context: Context) -> str | None:
    """Return that too much is not on record to speak of communication; None where it is."""
    lacks, issued = counted.lacking(context)
    if lacks <= LACKING * issued:
        return None
    unlisted = f"{counted.words(lacks, issued)} are counted, not listed"
    return f"Network or a late rank cannot be told: {unlisted}"


def _brief(context: Context, share: float) -> str:
    """Return how much communication is exposed, in few words."""
    word = step_word(context)
    whose = f"all {word}s" if len(context.ledger.run.ranks_seen) > 1 else f"the {word}"
    return f"exposed communication takes {_bound(context)}{percent(share)} of {whose}"


def _bound(context: Context) -> str:
    """Return `at least ` where some step knows a part of its exposed communication only, else nothing."""
    return "" if context.in_part(context.told_rows).empty else "at least "


def _untold(context: Context, share: float) -> str | None:
    """Return of how many collectives exposed time is not known; None where that forbids no verdict.

    They may be exposed for as long as they took, `LEAST_SHARE` of the steps together with the known `share`.
    """
    rows = context.told_rows
    bounded = context.in_part(rows)
    if bounded.empty:
        return None
    frame = context.in_alike[["step", "rank", "exposed_ns", "duration_ns"]]
    frame = keep(frame, frame["step"].isin(bounded["step"]))
    silent = keep(frame, frame["exposed_ns"].isna())
    if len(silent) <= LACKING * len(frame):
        return None
    most = float(silent["duration_ns"].sum()) / float(_own_ns(context, rows).sum())
    if silent["duration_ns"].notna().all() and share + most < LEAST_SHARE:
        return None
    return f"and of {len(silent):,} of {times(len(frame), 'collective')} it is not known"


def _fact(context: Context, share: float) -> str:
    """Return how much communication is exposed, over all ranks and where it is most."""
    rows = context.told_rows
    rows = rows.assign(own_ns=_own_ns(context, rows))
    mean = rows.groupby("rank")[["own_ns", "exposed_comm_ns"]].mean()
    worst = mean.iloc[int(np.argmax(mean["exposed_comm_ns"].to_numpy(dtype=np.float64)))]
    most, took = duration(float(worst["exposed_comm_ns"])), duration(float(worst["own_ns"]))
    word = step_word(context)
    if bound := _bound(context):
        # Nor is it known on which rank it is most.
        return f"exposed communication takes {bound}{percent(share)} of " + (
            f"rank {mean.index[0]}'s {took} {word}" if len(mean) == 1 else f"all ranks' {word}s"
        )
    if len(mean) == 1:
        return f"exposed communication takes {most} of rank {mean.index[0]}'s {took} {word}"
    return f"exposed communication takes {percent(share)} of all ranks' {word}s, up to {most} of {took}"


def _stages(context: Context) -> str:
    head = "Pipeline stages wait for each other, not for the network"
    uneven = pipeline_imbalance.worst(context)
    return head if uneven is None else f"{head}: {pipeline_imbalance.clause(uneven)}"


def _late(context: Context, brief: str, fact: str, parts: str) -> str:
    """Return the sentence where waiting for late ranks costs most."""
    if crowded(context) is not None:
        return f"Ranks that share CPU cores delay each other, the network is not at fault: {fact}; {parts}"
    slow = origins(context)
    if slow:
        also = f", and {times(len(slow) - 1, 'other rank')} too" if len(slow) > 1 else ""
        who = origin_cause.clause(slow[0])
        why = origin_cause.why(context, slow[0])
        return f"R{who[1:]}{also}, not the network: {why}; {brief}, {parts}"
    rows = waits(context)
    culprits = named(rows) if not rows.empty else []
    if not culprits:
        head = "Late ranks, no single one, are at fault, not the network"
        return f"{head}: {fact}; {parts}"
    culprit = culprits[0]
    late = keep(rows, (rows["late_rank"] == culprit) & (rows["late_ns"] >= LEAST_LATE_NS))
    often, least, most = last_in(context, rows, culprit)
    doubt = ", not"
    if uncertain(context, late):
        doubt = ", or began recording later; not"
    elif by_chance(context, rows, culprit) is not None:
        # Then the bill has it as information.
        doubt = ", perhaps by chance; not"
    wait = f"{duration(most)}" if least >= most * 0.8 else f"{duration(least)} to {duration(most)}"
    head = f"Rank {culprit} is late{doubt} the network"
    return f"{head}: last in {often}, others wait {wait} a step; {brief}, {parts}"


def last_in(context: Context, rows: pd.DataFrame, rank: int) -> tuple[str, float, float]:
    """Return in how many collectives the rank is last, and the least and most that others wait a step."""
    late = keep(rows, (rows["late_rank"] == rank) & (rows["late_ns"] >= LEAST_LATE_NS))
    once = late_to(rows)
    return (
        f"{len(late_to(late))} of {times(len(once), 'collective')}",
        *waiting(late, rank, len(context.alike)),
    )


def _warned(context: Context, findings: Sequence[Finding]) -> str | None:
    """Return who is late, where the bill warns of it or begins with it; None where it does not."""
    rows, billed = bills(context)
    first = headline_moving.dearest(findings)
    dearest = first.ranks if first is not None and first.kind == "straggler" else ()
    for bill in billed:
        toll = bill.line.figures["waited_ns"]
        if bill.rank is None or not toll:
            continue
        if bill.origin is not None:
            return origin_cause.clause(bill.origin)
        if dearest == (bill.rank,) or alarming(context, toll, rows, bill.rank):
            often, _, most = last_in(context, rows, bill.rank)
            return f"rank {bill.rank} is last in {often}, others wait up to {duration(most)} a step"
    return None


def _why_unknown(context: Context, frame: pd.DataFrame) -> str:
    run = context.ledger.run
    seen, world = len(run.ranks_seen), run.world_size
    peers = float(frame.loc[frame["op"].isin(PEER_OPS), "exposed_ns"].sum())
    if peers > float(frame["exposed_ns"].sum()) / 2:
        return "most of it is in sends and receives whose other ends could not be matched"
    if seen < world:
        why = f"{seen} of {world} ranks seen"
        rows = waits(context)
        rows = keep(rows, rows["at_least"])
        waited = float(rows["waited_ns"].sum()) >= TELLING * float(frame["exposed_ns"].sum())
        culprits = named(rows) if waited else []
        if not culprits:
            return f"{why}: waiting cannot be told from moving data{lower_bound.clause(frame)}"
        often, _, most = last_in(context, rows, culprits[0])
        return (
            f"{why}, and rank {culprits[0]} comes last of those seen in {often}: others wait at least "
            f"{duration(most)} a step for it"
        )
    if context.collectives["skew_ns"].notna().any():
        return "the hosts' clocks disagree: waiting cannot be told from moving data"
    return "the ranks' collectives could not be matched: waiting cannot be told from moving data"


def _rate(split: pd.DataFrame, moving: float) -> tuple[str, float | None]:
    """Return ` at 11 GB/s, 1.3 times its expected time` as far as known, and the factor.

    What is known of less than half of the moving says nothing of the whole.
    """

    def share(rows: pd.DataFrame) -> float:
        return float(np.minimum(rows["exposed_ns"], rows["transfer_ns"]).sum()) / moving if moving else 0.0

    # Ranks may come late to a rooted operation that waits for none of them: its rate is a lower bound.
    rooted = split["op"].isin(ROOTED)
    rates = keep(split, split["busbw_gbps"].notna() & ~rooted)
    if share(rates) < 0.5:
        return (f" ({percent(1 - share(rates))} of it at an unknown rate)" if moving else ""), None
    words = f" at {rate(float(rates['busbw_gbps'].median()))}"
    known = (split["expected_ns"] > 0) & (split["transfer_ns"] > 0) & split["match_id"].notna()
    # The fastest rank of a rooted operation does not tell how long the whole took.
    judged = keep(split, known & ~rooted)
    if judged.empty or share(judged) < 0.5:
        return f"{words}, expected time unknown", None
    fastest = judged.groupby("match_id").agg(
        t=("transfer_ns", "min"), floor=("floor_ns", "first"), expected=("expected_ns", "first")
    )
    took = float(fastest["t"].sum())
    if took < REFUTED_FACTOR * float(fastest["floor"].sum()):
        # Floors that others of the same job refute say nothing of these either.
        return f"{words}, expected time unknown", None
    factor = took / float(fastest["expected"].sum())
    return f"{words}, {factor:.2g} times its expected time", factor
