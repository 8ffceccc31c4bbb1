"""What the bill says of a rank at which lateness begins: why it is slow, whom it holds up, what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stragglers import late_remedies
from shardtoll.analyzers.findings.stragglers.lateness import host_computes
from shardtoll.analyzers.findings.stragglers.like_with_like import alike_ranks
from shardtoll.analyzers.findings.stragglers.origin import Origin
from shardtoll.analyzers.findings.stragglers.step_excess import PARTS, totals
from shardtoll.analyzers.shared.tally import Line, keep
from shardtoll.ledger import Evidence, Finding, Remedy, Rows, Severity, Where
from shardtoll.ledger.words.human import duration, percent, ranks

LEAST_PART: Final = 0.02
"""Part of the waiting that an origin causes which must be for a rank to name it as a victim."""


@dataclass(frozen=True, slots=True)
class OwnCause:
    """What a rank has most more of than those that do the same work."""

    part: str | None
    more_ns: dict[str, int]
    """Part -> what it has more of than its peers' median, per step."""


def own_cause(context: Context, rank: int) -> OwnCause:
    """Return what the rank has more of; no part where none of its peers' steps is on record."""
    peers = alike_ranks(context).peers.get(rank, ())
    table = totals(context)
    parts = list(PARTS)
    others = (
        keep(table, table["rank"].isin(peers)).groupby("step")[parts].quantile(0.5, interpolation="lower")
    )
    mine = keep(table, table["rank"] == rank).set_index("step")[parts]
    more = (mine - others).dropna()
    if more.empty:
        return OwnCause(None, {})
    each = {name: round(float(more[name].mean())) for name in PARTS}
    first = max(each, key=lambda name: each[name])
    return OwnCause(first if each[first] > 0 else None, each)


def clause(origin: Origin) -> str:
    """Return `rank 0 (stage 0) slows the job 1.94 times`."""
    stage = "" if origin.stage is None else f" (stage {origin.stage})"
    return f"rank {origin.rank}{stage} slows the job {origin.slowdown:.3g} times"


def why(context: Context, origin: Origin) -> str:
    """Return `it spends 26.0 s a step longer computing than the same stage of other replicas`."""
    cause = own_cause(context, origin.rank)
    others = alike_ranks(context).words
    if cause.part is None:
        return f"its own part of a step takes {duration(origin.excess_ns)} longer than that of {others}"
    words = late_remedies.words(cause.part, on_cpu=host_computes(context))
    return f"it spends {duration(cause.more_ns[cause.part])} a step longer {words} than {others}"


def victims(context: Context, rows: pd.DataFrame, origin: Origin) -> tuple[int, ...]:
    """Return the ranks that come last to collectives because of the origin, those most waited for first."""
    late = context.in_alike.loc[rows.index, "late_rank"]
    waited = rows["waited_ns"].groupby(late).sum().sort_values(ascending=False)
    waited = waited[waited >= LEAST_PART * waited.sum()]
    return tuple(int(rank) for rank in waited.index if int(rank) != origin.rank)


def finding(context: Context, origin: Origin, rows: pd.DataFrame, line: Line, severity: Severity) -> Finding:
    """Return the finding of an origin; `rows` are the waits that it causes, `line` their figures."""
    toll = line.figures["waited_ns"]
    assert toll is not None, "only known waiting is caused"
    cause = own_cause(context, origin.rank)
    held_up = tuple(sorted({int(rank) for rank in rows["rank"]} - {origin.rank}))
    on_cpu = host_computes(context)
    of_rank = victims(context, rows, origin)
    return Finding(
        kind="straggler",
        severity=severity,
        title=f"{clause(origin)}: {why(context, origin)}, and {len(held_up)} ranks wait up to "
        f"{duration(toll)} ({percent(context.share(toll, context.alike) or 0.0)}) for it",
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
            Evidence(
                "the same with this rank as fast as its peers' median, replayed", origin.without_ns, "ns"
            ),
            Evidence("slowdown of the job by this rank", round(origin.slowdown, 3), "times"),
            Evidence(
                "slowdown by this rank alone, all other slow ranks as their peers",
                round(origin.alone_ns / max(1, origin.ideal_ns), 3),
                "times",
            ),
            Evidence("its own time beyond its peers' median", origin.excess_ns, "ns"),
            Evidence("steps that it slows", f"{origin.late_steps} of {origin.steps}"),
            Evidence("ranks that wait", ranks(held_up) if held_up else None),
            Evidence("ranks that are late because of it", ranks(tuple(sorted(of_rank))) if of_rank else None),
            *(
                Evidence(f"longer {late_remedies.words(name, on_cpu=on_cpu)}, a step", more, "ns")
                for name, more in sorted(cause.more_ns.items(), key=lambda entry: -entry[1])
                if more > 0
            ),
        ),
        remedy=Remedy(
            *late_remedies.remedy(cause.part, None, origin.rank, on_cpu=on_cpu),
            counterfactual=f"the step replayed with this rank as fast as {alike_ranks(context).words}",
        ),
        confidence="likely",
    )
