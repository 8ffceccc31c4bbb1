"""The rank for which the others wait, and what it did when they had arrived."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.origins.origin import Origin
from shardtoll.analyzers.findings.origins.slowdown_evidence import slowdown_evidence, slowdown_figures
from shardtoll.analyzers.findings.stragglers import late_remedies
from shardtoll.analyzers.findings.stragglers.late_bills import Bill, bills
from shardtoll.analyzers.findings.stragglers.late_chance import worth_a_warning
from shardtoll.analyzers.findings.stragglers.late_habit import habit_finding
from shardtoll.analyzers.findings.stragglers.late_turns import turns_finding
from shardtoll.analyzers.findings.stragglers.lateness import host_computes
from shardtoll.analyzers.findings.stragglers.origin_cause import clause, compared_with, own_cause, why
from shardtoll.analyzers.shared.tally import Line
from shardtoll.ledger import Evidence, Finding, Remedy, Rows, Severity, Where
from shardtoll.ledger.words.human import duration, percent, ranks

LEAST_PART: Final = 0.02
"""Part of the waiting that an origin causes which must be for a rank to name it as a victim."""


def find(context: Context) -> list[Finding]:
    """Return one finding a rank that is late by habit, and one for waiting on ranks that take turns.

    Toll: exposed waiting per step on the rank that waits most; `exposed-communication` leaves it out. Steps
    that one rank surveyed and another watched are not looked at, where there are others: the wait is for
    capture there. The saving is against the late rank arriving with the second-to-last one. If ranks were not
    seen, waiting for the last of those seen is a lower bound, and the finding says so. Ranks that share CPU
    cores delay each other. Then a notice says so, and only a rank that slept meanwhile is a finding.
    """
    rows, dear = bills(context)
    besides = any(bill.rank is not None for bill in dear)
    return [_finding(context, rows, bill, besides) for bill in dear]


def _finding(context: Context, rows: pd.DataFrame, bill: Bill, besides: bool) -> Finding:
    if bill.origin is not None:
        toll = bill.line.figures["waited_ns"] or 0
        habit = bill.origin.steady or len(bill.origin.slow_steps) > 1
        severity: Severity = "warning" if habit and worth_a_warning(context, toll) else "info"
        return finding(context, bill.origin, bill.rows, bill.line, severity)
    if bill.rank is None:
        return turns_finding(context, bill.rows, bill.line, besides)
    return habit_finding(context, bill.rank, rows, bill.rows, bill.line)


def _victims(context: Context, rows: pd.DataFrame, origin: Origin) -> tuple[int, ...]:
    """Return the ranks that come last to collectives because of the origin, those most waited for first."""
    late = context.in_alike.loc[rows.index, "late_rank"]
    waited = rows["waited_ns"].groupby(late).sum().sort_values(ascending=False)
    waited = waited[waited >= LEAST_PART * waited.sum()]
    return tuple(int(rank) for rank in waited.index if int(rank) != origin.rank)


def finding(context: Context, origin: Origin, rows: pd.DataFrame, line: Line, severity: Severity) -> Finding:
    """Return the finding of an origin; `rows` are the waits that it causes, `line` their figures."""
    toll = line.figures["waited_ns"]
    assert toll is not None, "only known waiting is caused"
    cause = own_cause(context, origin)
    held_up = tuple(sorted({int(rank) for rank in rows["rank"]} - {origin.rank}))
    on_cpu = host_computes(context)
    held_to = "its own median over the steps" if origin.to_itself else "its peers' median"
    of_rank = _victims(context, rows, origin)
    return Finding(
        kind="straggler",
        severity=severity,
        title=f"{clause(origin)}: {why(context, origin)}, and {len(held_up)} ranks wait up to "
        f"{duration(toll)} ({percent(context.share(toll, context.timed) or 0.0)}) for it",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=max(0, min(toll, origin.before_ns - origin.without_ns)),
        bytes=None,
        count=line.count,
        ranks=(origin.rank,),
        rows=Rows.of(collectives=rows.index),
        where=Where(),
        evidence=(
            Evidence("the job's step", origin.before_ns, "ns"),
            Evidence(f"the same with this rank as fast as {held_to}, replayed", origin.without_ns, "ns"),
            Evidence("slowdown of the job by this rank", round(origin.slowdown, 3), "times"),
            Evidence(
                "slowdown by this rank alone, all other slow ranks as their peers",
                round(origin.alone_ns / max(1, origin.ideal_ns), 3),
                "times",
            ),
            Evidence(f"its own time beyond {held_to}", origin.excess_ns, "ns"),
            Evidence("steps that it slows", f"{len(origin.slow_steps)} of {origin.steps}"),
            *slowdown_evidence(context),
            Evidence("ranks that wait", ranks(held_up) if held_up else None),
            Evidence("ranks that are late because of it", ranks(tuple(sorted(of_rank))) if of_rank else None),
            *(
                Evidence(f"more time {late_remedies.words(name, on_cpu=on_cpu)}, per step", more, "ns")
                for name, more in sorted(cause.more_ns.items(), key=lambda entry: -entry[1])
                if more > 0
            ),
        ),
        remedy=Remedy(
            *late_remedies.remedy(
                cause.part,
                None,
                origin.rank,
                on_cpu=on_cpu,
                serves=context.serves,
                device=context.ledger.run.device,
            ),
            counterfactual=f"the step replayed with this rank as fast as {compared_with(context, origin)}",
            measures=late_remedies.measures(cause.part),
        ),
        confidence="likely",
        figures=(
            *slowdown_figures(context, origin),
            *late_remedies.launch_figures(cause.part, cause.more_ns.get(cause.part or "", 0), on_cpu=on_cpu),
            *late_remedies.idle_figures(cause.more_ns),
        ),
    )
