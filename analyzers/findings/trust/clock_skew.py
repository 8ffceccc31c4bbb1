"""Hosts whose clocks disagree: by how much, and whether waiting can still be separated from moving data."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.context.clocks import Clock
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Evidence, Finding, Remedy, Rows
from shardtoll.ledger.words.human import duration, ranks
from shardtoll.ledger.words.human import plural as times

SHOWN: Final = 16
"""Hosts listed in the evidence, the farthest off first; all are counted."""

REMEDY: Final = "Synchronise the hosts' clocks (chrony, PTP), or compare ranks of one host only."


def find(context: Context) -> list[Finding]:
    """Return one finding for clocks whose offset is known, and one for collectives that make no sense still.

    An offset is claimed above 100 us and above the residual of its estimate (`clocks`). Starts are then
    corrected by it before waiting is separated from moving. Ranks may seem to leave a collective more than
    100 us apart that all leave together. If the clocks are unknown, wait and transfer then stay unknown. Both
    apply to ranks of one host only if their ends contradict a shared clock.
    """
    return [*_estimated(context), *_unknown(context)]


def _estimated(context: Context) -> list[Finding]:
    off = [clock for clock in context.clocks.clocks if clock.claimed]
    if not off:
        return []
    off.sort(key=lambda clock: -(clock.largest_ns or 0))
    worst = off[0]
    seen = tuple(sorted(rank for clock in off for rank in clock.ranks))
    return [
        Finding(
            kind="clock-skew",
            severity="info",
            title=f"the clock of {worst.host} is {_ahead(worst)} that of {worst.reference}"
            + (f", and {times(len(off) - 1, 'other clock')} differ too" if len(off) > 1 else "")
            + ": waiting is computed on corrected times",
            toll_ns=None,
            floor_ns=None,
            saving_ns=None,
            bytes=None,
            count=len(off),
            ranks=seen,
            evidence=tuple(item for clock in off[:SHOWN] for item in _evidence(clock)),
            remedy=Remedy(REMEDY),
            confidence="likely",
        )
    ]


def _ahead(clock: Clock) -> str:
    assert clock.offset_ns is not None, "only known offsets are claimed"
    return f"{duration(abs(clock.offset_ns))} {'ahead of' if clock.offset_ns > 0 else 'behind'}"


def _evidence(clock: Clock) -> tuple[Evidence, ...]:
    return (
        Evidence(f"offset of {clock.host} ({ranks(clock.ranks)})", clock.offset_ns, "ns"),
        Evidence(
            f"drift of {clock.host}",
            "below the residual" if clock.drift_ppm is None else clock.drift_ppm,
            None if clock.drift_ppm is None else "ppm",
        ),
        Evidence(f"residual of {clock.host}, {times(clock.collectives, 'end')}", clock.residual_ns, "ns"),
    )


def _unknown(context: Context) -> list[Finding]:
    frame = keep(context.collectives, context.collectives["skew_ns"].notna())
    if frame.empty:
        return []
    count = int(frame["match_id"].nunique())
    worst = int(frame["skew_ns"].max())
    seen = tuple(sorted({int(rank) for rank in frame["rank"]}))
    return [
        Finding(
            kind="clock-skew",
            severity="warning",
            title=f"clocks of {ranks(seen)} disagree by {duration(worst)}: "
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
            remedy=Remedy(REMEDY),
            rows=Rows.of(collectives=frame.index),
        )
    ]
