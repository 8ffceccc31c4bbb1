"""Why a rank at which lateness begins is slow, as the bill and the headline say it."""

from __future__ import annotations

from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.origins.like_with_like import alike_ranks
from shardtoll.analyzers.findings.origins.origin import Origin
from shardtoll.analyzers.findings.stragglers import late_remedies
from shardtoll.analyzers.findings.stragglers.lateness import host_computes
from shardtoll.analyzers.findings.stragglers.own_steps import beyond_usual
from shardtoll.analyzers.findings.stragglers.step_excess import PARTS, totals
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger.words.human import duration
from shardtoll.ledger.words.human import plural as times


class OwnCause(Struct, frozen=True):
    """The part in which a rank exceeds those that do the same work, or its own other steps, by most."""

    part: str | None
    more_ns: dict[str, int]
    """Part -> what it has more of, per step in which it is slow."""


def own_cause(context: Context, origin: Origin) -> OwnCause:
    """Return what the rank has more of; no part if none of what it is held to is on record."""
    if origin.to_itself:
        more = beyond_usual(context, origin.rank)
    else:
        table, parts = totals(context), list(PARTS)
        mine = keep(table, table["rank"] == origin.rank).set_index("step")[parts]
        peers = alike_ranks(context).peers.get(origin.rank, ())
        of_peers = keep(table, table["rank"].isin(peers)).groupby("step")[parts]
        more = mine - of_peers.quantile(0.5, interpolation="lower")
    more = more.dropna()
    if not origin.steady:
        more = keep(more, more.index.isin(origin.slow_steps))
    if more.empty:
        return OwnCause(None, {})
    each = {name: round(float(more[name].mean())) for name in PARTS}
    first = max(each, key=lambda name: each[name])
    if set(context.timed).isdisjoint(context.surveyed) and 0 < origin.excess_ns < each[first]:
        # Surveyed steps tell the parts, and the first of them sets things up.
        each = {name: round(more_ns * origin.excess_ns / each[first]) for name, more_ns in each.items()}
    return OwnCause(first if each[first] > 0 else None, each)


def compared_with(context: Context, origin: Origin) -> str:
    """Return what the rank is held to: `the same stage of other replicas`."""
    return "in its other steps" if origin.to_itself else alike_ranks(context).words


def clause(origin: Origin) -> str:
    """Return `rank 0 (stage 0) slows the job by a factor of 1.94`, and in how many steps if not in all."""
    stage = "" if origin.stage is None else f" (stage {origin.stage})"
    often = "" if origin.steady else f" in {len(origin.slow_steps)} of {times(origin.steps, 'step')}"
    return f"rank {origin.rank}{stage} slows the job by a factor of {origin.slowdown:.3g}{often}"


def why(context: Context, origin: Origin, *, figures: bool = True) -> str:
    """Return `it spends 26.0 s more per step computing than the same stage of other replicas`.

    Without `figures`: `it spends longer computing than the same stage of other replicas`, for a sentence that
    has a figure of that slowness already.
    """
    cause = own_cause(context, origin)
    others = compared_with(context, origin)
    if cause.part is None:
        that_of = "" if origin.to_itself else "that of "
        by = f"{duration(origin.excess_ns)} longer" if figures else "longer"
        return f"its own part of a step takes {by} than {that_of}{others}"
    words = late_remedies.words(cause.part, on_cpu=host_computes(context))
    if not figures:
        return f"{'it' if origin.steady else 'there it'} spends longer {words} than {others}"
    longer = duration(cause.more_ns[cause.part])
    if origin.steady:
        return f"it spends {longer} more per step {words} than {others}"
    return f"there it spends {longer} longer {words} than {others}"
