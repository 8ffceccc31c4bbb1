"""The sentence `Report.headline`: who is at fault, how much of the step it costs, and what to do.

At fault is a rank, the network, a pipeline's stage, the host, the input pipeline, copies, or an abstraction
that adds collectives. `Report.verdict`, which renderers show first, puts errors before it.

It must not contradict the bill. `host_waits.clause` gives way to a finding with a higher toll;
`moving.most_expensive` has the sentence name a first finding about late ranks. `advice.first_of` points only
to findings of what the sentence blames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.crowded import crowded
from shardtoll.analyzers.context.fill import LEAST_LATE_NS
from shardtoll.analyzers.context.peers import PEER_OPS, ROOTED
from shardtoll.analyzers.findings.origins.origin import origins
from shardtoll.analyzers.findings.stages import pipeline_imbalance
from shardtoll.analyzers.findings.stages.pipeline_bubble import message_waits
from shardtoll.analyzers.findings.stragglers import late_remedies, origin_cause
from shardtoll.analyzers.findings.stragglers.late_bills import bills, named
from shardtoll.analyzers.findings.stragglers.late_cause import cause_of, uncertain
from shardtoll.analyzers.findings.stragglers.late_chance import alarming, by_chance
from shardtoll.analyzers.findings.stragglers.late_habit import waiting
from shardtoll.analyzers.findings.stragglers.lateness import host_computes, late_to, waits
from shardtoll.analyzers.findings.trust import counted
from shardtoll.analyzers.headline import copies as headline_copies
from shardtoll.analyzers.headline import equal_batches, host_waits, lower_bound, shared_cores, unattributed
from shardtoll.analyzers.headline import idle as headline_idle
from shardtoll.analyzers.headline import moving as headline_moving
from shardtoll.analyzers.headline.advice import (
    WIDTH,
    best_of,
    ends,
    ends_of_both,
    first_of,
    launching,
    orders,
    room,
    with_advice,
)
from shardtoll.analyzers.headline.step_words import after, lead, step_word
from shardtoll.analyzers.pipelines.pipeline_shape import shape
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Finding
from shardtoll.ledger.records.levels import watched_steps
from shardtoll.ledger.records.one_cause import own_reason
from shardtoll.ledger.words.human import duration, percent, ranks, rate
from shardtoll.ledger.words.human import plural as times

LEAST_SHARE: Final = 0.05
"""Share of all ranks' steps below which communication is not the matter."""

LEAST_SAID: Final = 0.005
"""Share from which exposed communication is named though something else costs more."""

TELLING: Final = 0.2
"""Part of exposed communication from which a lower bound of the waiting in it is worth the words."""

LEAST_UNKNOWN: Final = 0.01
"""Part of exposed communication from which it is worth the words that waiting or moving is unknown."""

LEAST_TOLL: Final = 0.01
"""Part of the step that a finding must cost to be said to explain idle time."""
LITTLE_COMPUTE: Final = 0.1
"""Share of the steps below which compute hides hardly anything of the transfers."""

OUTWEIGHS: Final = 2.0
"""Times what the slowest stage costs that a bubble must cost to be named in its place."""

LACKING: Final = 0.1
"""Share of the issued collectives above which those not on record, or not timed, forbid a verdict."""

COLUMNS: Final = (
    *("op", "match_id", "exposed_ns", "transfer_ns", "busbw_gbps", "floor_ns", "expected_ns", "step"),
    *("duration_ns", "message_bytes", "group_size"),
)
"""Columns of a collective that are read."""

_CANNOT: Final = "Cannot tell whether the network or a late rank is at fault"
_NO_STEP: Final = f"{_CANNOT}, as no step records exposed communication"

LATE: Final = ("straggler",)
"""Kinds of the findings whose remedy ends the sentence."""

MOST_OF_WAIT: Final = 0.8
"""Part of the waiting from which what a late rank does longer is all of it."""

REFUTED_FACTOR: Final = 0.9
"""Transfers faster than that part of their floor refute it: what is expected says nothing then."""


def sentence(context: Context, findings: Sequence[Finding] = ()) -> str | None:
    """Return the sentence; None if no step was recorded, so that there is nothing to say.

    Shares of waiting and moving are over all seen ranks together, as the late rank itself waits least.
    `findings`, in the order of the bill, are those it stands above: it does not contradict the first.
    """
    if context.timed_rows.empty or not context.step_ns:
        return None
    said = _verdict(context, findings)
    advice = ends(findings, said.advice, said.purpose)
    order = orders(findings, said.advice, said.purpose)
    if said.also is not None:
        advice, order = ends_of_both(findings, (said.advice, said.also)), ()
    elif said.because is not None:
        number, order = said.because + 1, order or orders(findings, said.because)
        advice = (f"its reason is finding {number} ({findings[said.because].kind})", f"see finding {number}")
    base = after(lead(context), said.base)
    first = f"{base}{next(filter(None, said.more), '')}" if said.needed else base
    # An order leaves details out, but not the first of them: it is what the verdict rests on.
    fitting = [words for words in order if len(first) + len(words) + 3 <= WIDTH][:1]
    text = with_advice(joined(base, said.more, WIDTH - room(fitting or advice)), [*fitting, *advice])
    return f"{text}."


def joined(base: str, more: Sequence[str], width: int) -> str:
    """Return the sentence with the parts that two lines hold: details, after commas, go first, the last one
    before others."""
    parts = [part for part in more if part]
    while parts and len(base) + sum(map(len, parts)) > width:
        details = [place for place, part in enumerate(parts) if not part.startswith(";")]
        parts.pop(details[-1] if details else -1)
    return base + "".join(parts)


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence in the parts that are joined as far as two lines reach."""

    base: str
    more: tuple[str, ...] = ()
    advice: int | None = None
    """Place of the finding whose remedy ends the sentence: one of what the sentence blames, or none."""
    purpose: str = ""
    """Purpose of its remedy, as `to send less, `, if the finding is of another kind."""
    because: int | None = None
    """Place of a finding that says why the rank is late that the sentence blames."""
    needed: bool = True
    """Whether the first of `more` goes before advice in words of its own."""
    also: int | None = None
    """Place of a second finding, if the sentence blames two things."""


def _verdict(context: Context, findings: Sequence[Finding]) -> Said:
    rows = context.told_rows
    total = float(_own_ns(context, rows).sum())
    share = float(rows["exposed_comm_ns"].sum()) / total if total > 0 else None
    leading, kinds = _leading(context, findings)
    unknown = _blind(context) or _off_record(context) or (_NO_STEP if share is None else None)
    if leading is not None:
        # If no finding explains it, the hint is in the sentence.
        advice = first_of(findings, kinds) if kinds else None
        if unknown is not None or share is None:
            unknown = unknown or _NO_STEP
            return Said(f"{leading}; {unknown[0].lower()}{unknown[1:]}", advice=advice)
        more = [f"; {_brief(context, share)}"] if share >= LEAST_SAID else []
        needed = share >= LEAST_SHARE and kinds != (equal_batches.KIND,)
        return Said(leading, tuple(more), advice, needed=needed)
    if unknown is not None or share is None:
        return Said(unknown or _NO_STEP)
    said = _sentence(context, share, findings)
    besides = (headline_copies.besides, headline_idle.besides, unattributed.besides)
    return replace(said, more=(*said.more, *(each(context) for each in besides)))


def _leading(context: Context, findings: Sequence[Finding]) -> tuple[str | None, tuple[str, ...]]:
    """Return what costs more than communication, and the kinds of findings that say what to do about it."""
    first = equal_batches.clause(findings) or host_waits.clause(context, findings)
    if first is not None:
        return first
    copies = headline_copies.clause(context)
    if copies is not None:
        return copies, ("transfer-stall",)
    idle = headline_idle.clause(context, {finding.kind for finding in findings})
    if idle is not None:
        text, kinds = idle
        return text, _worth_saying(context, findings, kinds)
    host = host_waits.clause(context, findings, within_idle=True)
    if host is not None:
        return host
    return unattributed.clause(context), ("unattributed-time",)


def _worth_saying(context: Context, findings: Sequence[Finding], kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the kinds with a finding that costs some of the step: others explain no idle time."""
    least_ns = LEAST_TOLL * (context.step_ns or 0)
    told = {finding.kind for finding in findings if (finding.toll_ns or 0) >= least_ns}
    return tuple(kind for kind in kinds if kind in told)


def _own_ns(context: Context, rows: pd.DataFrame) -> pd.Series[float]:
    """Return how long steps took, as the table of ranks shows it: capture is left out of watched ones."""
    took: pd.Series[float] = rows["duration_ns"].astype("float64")
    watched = bool(watched_steps(context.ledger.tables["steps"]))
    return took - rows["capture_ns"].astype("float64") if watched else took


def _sentence(context: Context, share: float, findings: Sequence[Finding]) -> Said:
    brief = _brief(context, share)
    if share < LEAST_SHARE:
        return Said(_small(context, share))
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
        brief = f"waiting takes {_of_step(context, part.waiting)}"
        if bubbles > waited / 2:
            between = f", {percent(share * bubbles / exposed)} between stages"
            advice = best_of(findings, headline_idle.STAGES)
            head, place = _stages(context, findings, advice)
            return Said(head, (f"; {brief}", between), place, needed=place == advice)
        return _late(context, brief, (part.besides("moving data", part.moving), rest), findings)
    rate, factor = _rate(split, moving)
    of_step = f"{_of_step(context, part.moving)}{_little_compute(context)}"
    brief = f"moving data takes {of_step}"
    moves = (rate, part.besides("waiting", part.waiting), rest)
    late = _warned(context, findings)
    if late is not None:
        # The rank that waits has the waiting, every rank the moving: over all ranks that looks like more.
        rank, words = late
        first = headline_moving.most_expensive(findings)
        if first is not None and first.kind in LATE:
            head = f"Rank {rank} is late: {words}; {brief}"
        else:
            head = f"Moving data costs most: {of_step}; rank {rank} is late too: {words}"
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


def _small(context: Context, share: float) -> str:
    """Return that communication is hidden or small, or that too little of it is known to say so."""
    doubt = _doubt(context, share)
    if doubt is not None:
        return f"{_CANNOT}, as {doubt}: {_brief(context, share)}"
    compute = _compute(context)
    if context.collectives.empty and share == 0:
        return f"No communication is on record{f'; {compute}' if compute else ''}"
    also = f"; {compute}" if compute else ""
    if context.ledger.run.is_forecast:
        # No other rank is played, so none can be late.
        return f"The network is not at fault: {_brief(context, share)}{also}"
    return f"Neither the network nor a late rank is at fault: {_brief(context, share)}{also}"


def _compute(context: Context) -> str | None:
    """Return how much of the steps is compute; None if the steps do not record it."""
    share = _compute_share(context)
    return None if share is None else f"compute takes {percent(share)}"


def _compute_share(context: Context) -> float | None:
    rows = context.parts_rows
    total = float((rows["duration_ns"] - rows["capture_ns"]).sum())
    return float(rows["compute_ns"].sum()) / total if total > 0 else None


def _little_compute(context: Context) -> str:
    """Return `, compute only 2.3 %` if that is too little to hide transfers behind; else nothing."""
    share = None if context.on_cpu else _compute_share(context)
    return f", compute only {percent(share)}" if share is not None and share < LITTLE_COMPUTE else ""


def _blind(context: Context) -> str | None:
    """Return that there is no device timeline, and how many collectives were issued; None if there is one."""
    if context.surveyed or "no-device-timeline" not in set(context.notices["kind"]):
        return None
    issued = times(len(context.in_steps), "collective")
    return (
        "There is no device timeline, so compute, exposed communication and idle time are unknown; "
        f"{issued} {'was' if len(context.in_steps) == 1 else 'were'} issued; "
        "record the device's activities too"
    )


def _off_record(context: Context) -> str | None:
    """Return that too much is not on record to speak of communication; None if it is."""
    lacks, issued = counted.lacking(context)
    if lacks <= LACKING * issued:
        return None
    unlisted = f"{counted.words(lacks, issued)} are counted, not listed"
    return f"{_CANNOT}, as {unlisted}"


def _brief(context: Context, share: float) -> str:
    """Return how much communication is exposed, in the words of the bars."""
    named = "waiting for ranks and moving data take" if _divided(context) else "exposed communication takes"
    return f"{named} {_of_step(context, share)}"


def _divided(context: Context) -> bool:
    """Return whether some exposed communication is known to be waiting or moving data, as bars show it."""
    frame = context.in_alike
    exposed = (frame["exposed_ns"].notna() & (frame["exposed_ns"] > 0)).to_numpy(dtype=bool)
    return bool((exposed & frame["transfer_ns"].notna().to_numpy(dtype=bool)).any())


def _of_step(context: Context, share: float) -> str:
    """Return `22 % of the step (mean of 4 ranks)`; without the mean if one rank was recorded."""
    seen = len(context.ledger.run.ranks_seen)
    mean = f" (mean of {seen:,} ranks)" if seen > 1 else ""
    return f"{_bound(context)}{percent(share)} of the {step_word(context)}{mean}"


class _Parts(Struct, frozen=True):
    """Shares of the steps: waiting for other ranks, and moving data."""

    waiting: float
    moving: float

    @staticmethod
    def besides(name: str, share: float) -> str:
        """Return the smaller part after the larger one, as `, moving data 4.4 %`; empty if it is nothing."""
        return f", {name} {percent(share)}" if share >= LEAST_SAID else ""


def _bound(context: Context) -> str:
    """Return `at least ` if some step knows a part of its exposed communication only, else nothing."""
    return "" if context.in_part(context.told_rows).empty else "at least "


def _doubt(context: Context, share: float) -> str | None:
    """Return how many collectives have no known exposed time; None if that forbids no verdict.

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
    return f"{len(silent):,} of {times(len(frame), 'collective')} have no known exposed time"


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


def _late(context: Context, brief: str, more: tuple[str, ...], findings: Sequence[Finding]) -> Said:
    """Return the sentence if waiting for late ranks costs most."""
    shared = crowded(context)
    slept = [bill.rank for bill in bills(context)[1] if bill.rank is not None] if shared else []
    if shared is not None and not slept:
        return Said(*shared_cores.sentence(context, shared, brief, more, findings))
    if shared is not None:
        more = (*more, f"; {shared_cores.both(shared)}")
    slow = origins(context)
    if slow:
        also = f", and {times(len(slow) - 1, 'other rank')} too" if len(slow) > 1 else ""
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
        head = f"Ranks take turns in being late, not the network: {brief}"
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
    base = f"{head}: the others wait {wait} per step for it"
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
        f"{len(late_to(late))} of {times(len(once), 'collective')}",
        *waiting(context, late, rank),
    )


def _warned(context: Context, findings: Sequence[Finding]) -> tuple[int, str] | None:
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
            words = f"others wait for it in {often}, up to {duration(most)} per step"
            return bill.rank, words
    return None


def _undivided(context: Context, frame: pd.DataFrame, brief: str, findings: Sequence[Finding]) -> Said:
    """Return the sentence if waiting and moving data cannot be divided, with what is known anyway.

    It has advice only if it names a rank: a doubt belongs to no finding that costs time.
    """
    run = context.ledger.run
    seen, world = len(run.ranks_seen), run.world_size
    peers = float(frame.loc[frame["op"].isin(PEER_OPS), "exposed_ns"].sum())
    if peers > float(frame["exposed_ns"].sum()) / 2:
        return Said(f"{_CANNOT}, as most sends and receives match no other end: {brief}")
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
        return Said(f"{_CANNOT}, as {why}: {brief}{bound.words if bound else ''}; record all ranks")
    if context.collectives["skew_ns"].notna().any():
        return Said(f"{_CANNOT}, as the hosts' clocks disagree: {brief}")
    return Said(f"{_CANNOT}, as collectives of the ranks could not be matched: {brief}")


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
