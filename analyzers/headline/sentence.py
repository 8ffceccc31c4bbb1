"""The sentence `Report.headline`: who is at fault, how much of the step it costs, and what to do.

At fault is a rank, the network, a pipeline's stage, the host, the input pipeline, copies, or an abstraction
that adds collectives. `Report.verdict`, which renderers show first, puts errors before it.

It must not contradict the bill. `host_waits.clause` gives way to a finding with a higher toll;
`moving.most_expensive` has the sentence name a first finding about late ranks. `advice.first_of` points only
to findings of what the sentence blames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.headline import copies as headline_copies
from shardtoll.analyzers.headline import host_waits, unattributed
from shardtoll.analyzers.headline import idle as headline_idle
from shardtoll.analyzers.headline.advice import (
    WIDTH,
    ends,
    ends_of_both,
    first_of,
    orders,
    room,
    with_advice,
)
from shardtoll.analyzers.headline.communication import of_communication
from shardtoll.analyzers.headline.said import LEAST_SAID, LEAST_SHARE, NO_STEP, Said, joined
from shardtoll.analyzers.headline.shares import blind, brief_of, off_record, own_ns
from shardtoll.analyzers.headline.step_words import after, lead
from shardtoll.ledger import Finding
from shardtoll.ledger.answers.unbilled import Unbilled

LEAST_TOLL: Final = 0.01
"""Part of the step that a finding must cost to be said to explain idle time."""

EQUAL_BATCHES: Final = "duplicated-data"


def sentence(
    context: Context, findings: Sequence[Finding] = (), unbilled: Unbilled | None = None
) -> str | None:
    """Return the sentence; None if no step was recorded, so that there is nothing to say.

    Shares of waiting and moving are over all seen ranks together, as the late rank itself waits least.
    `findings`, in the order of the bill, are those it stands above: it does not contradict the first.
    `unbilled` is what views say of time in no finding.
    """
    if context.timed_rows.empty or not context.step_ns:
        return None
    said = _weighed(context, findings, unbilled)
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


def _weighed(context: Context, findings: Sequence[Finding], unbilled: Unbilled | None) -> Said:
    """Return what the sentence says. All parts of the step are weighed, in this order:

    1. what costs more than communication (`_leading`): equal batches, a host that others wait for, copies,
       idle time, a host within it, unattributed time;
    2. records that forbid a verdict: no device timeline, collectives that are counted and not listed;
    3. communication (`communication.of_communication`).
    """
    rows = context.told_rows
    total = float(own_ns(context, rows).sum())
    share = float(rows["exposed_comm_ns"].sum()) / total if total > 0 else None
    leading, kinds = _leading(context, findings, unbilled)
    unknown = blind(context) or off_record(context) or (NO_STEP if share is None else None)
    if leading is not None:
        # If no finding explains it, the hint is in the sentence.
        advice = first_of(findings, kinds) if kinds else None
        if unknown is not None or share is None:
            unknown = unknown or NO_STEP
            return Said(f"{leading}; {unknown[0].lower()}{unknown[1:]}", advice=advice)
        more = [f"; {brief_of(context, share)}"] if share >= LEAST_SAID else []
        needed = share >= LEAST_SHARE and kinds != (EQUAL_BATCHES,)
        return Said(leading, tuple(more), advice, needed=needed)
    if unknown is not None or share is None:
        return Said(unknown or NO_STEP)
    said = of_communication(context, share, findings)
    besides = (headline_copies.besides, headline_idle.besides, unattributed.besides)
    return replace(said, more=(*said.more, *(each(context) for each in besides)))


def _leading(
    context: Context, findings: Sequence[Finding], unbilled: Unbilled | None
) -> tuple[str | None, tuple[str, ...]]:
    """Return what costs more than communication, and the kinds of findings that say what to do about it."""
    first = _equal_batches(findings) or host_waits.clause(context, findings)
    if first is not None:
        return first
    copies = headline_copies.clause(context)
    if copies is not None:
        return copies, ("transfer-stall",)
    kinds_found = {finding.kind for finding in findings}
    idle = headline_idle.clause(context, kinds_found, shown=unbilled is not None and unbilled.idle)
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


def _equal_batches(findings: Sequence[Finding]) -> tuple[str, tuple[str, ...]] | None:
    """Return who trains on equal batches, and the kind of the finding; None if no check has shown it.

    It leads whatever else costs time: a faster step would only repeat the same samples sooner.
    """
    shown = (
        finding for finding in findings if finding.kind == EQUAL_BATCHES and finding.severity == "warning"
    )
    first = next((finding for finding in shown if finding.confidence == "certain"), None)
    if first is None:
        return None
    return f"{first.title[0].upper()}{first.title[1:]}", (EQUAL_BATCHES,)
