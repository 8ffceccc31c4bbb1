"""Ranks whose clocks plainly disagree, so that waiting cannot be told from moving data."""

from __future__ import annotations

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.words import duration, ranks, times
from shardtoll.ledger import Evidence, Finding, Remedy


def find(context: Context) -> list[Finding]:
    """Return at most one finding: collectives that a rank seems to leave before another arrives.

    Nobody can leave an all_reduce, say, before the last rank is there. Where the record says so by
    more than `fill.CLOCK_SLACK_NS`, wait and transfer of the collective stay unknown.
    """
    frame = context.collectives[context.collectives["skew_ns"].notna()]
    if frame.empty:
        return []
    count = int(frame["match_id"].nunique())
    worst = int(frame["skew_ns"].max())
    seen = tuple(sorted({int(rank) for rank in frame["rank"]}))
    return [
        Finding(
            kind="clock-skew",
            severity="warning",
            title=f"clocks of {ranks(seen)} disagree by {duration(worst)} or more: "
            f"waiting in {times(count, 'collective')} is unknown",
            toll_ns=None,
            floor_ns=None,
            saving_ns=None,
            bytes=None,
            count=count,
            ranks=seen,
            evidence=(
                Evidence("largest", worst, "ns"),
                Evidence("hosts", ", ".join(context.ledger.run.hosts) or None),
            ),
            remedy=Remedy("Synchronise the hosts' clocks (chrony, PTP), or compare ranks of one host only."),
        )
    ]
