"""What the bill does not see: ranks, steps, times that are missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.tally import number
from shardtoll.analyzers.words import ranks, size, times
from shardtoll.ledger import Evidence, Finding, Remedy, Severity

NOTICES: Final = {
    "rank-incomplete": "ended before the session closed; the finished steps are counted",
    "gather-incomplete": "could not be gathered",
    "capture-stopped": "stopped capturing; what followed is not on record",
    "times-unknown": "recorded collectives without times; their cost is unknown",
}
"""Notice kinds that make the input incomplete, and what such a rank did."""


def find(context: Context) -> list[Finding]:
    """Return one finding a cause: ranks not seen, notices by kind, uneven steps, rows outside steps,
    collectives without times. None of them has a toll."""
    run = context.ledger.run
    findings = []
    kinds = set(context.notices["kind"])
    if run.ranks_missing and run.backend != "fake":
        missing = run.ranks_missing
        findings.append(
            _finding(
                f"{ranks(missing)} of {run.world_size} left no records: the bill covers "
                f"{ranks(run.ranks_seen) if run.ranks_seen else 'no rank'} and not how long they waited",
                missing,
                (Evidence("ranks seen", len(run.ranks_seen)), Evidence("ranks missing", len(missing))),
                "Look at why these ranks died or could not be reached; where each wrote to its own disk, "
                "copy their files into one run folder and report that.",
            )
        )
    for kind, did in NOTICES.items():
        rows = context.notices[context.notices["kind"] == kind]
        if rows.empty:
            continue
        who = tuple(sorted({int(rank) for rank in rows["rank"]}))
        texts = list(dict.fromkeys(str(text) for text in rows["text"]))
        findings.append(
            _finding(
                f"{ranks(who)} {did}",
                who,
                tuple(Evidence(kind, text) for text in texts),
                "Read the figures of these ranks as lower bounds.",
            )
        )
    findings += _steps(context)
    findings += _outside(context)
    if "times-unknown" not in kinds:
        findings += _untimed(context)
    return findings


def _steps(context: Context) -> list[Finding]:
    """Ranks that finished fewer steps than others, where no notice has said so."""
    if not context.steps:
        return [
            _finding(
                "no rank finished a step: there is nothing to bill per step",
                context.ledger.run.ranks_seen,
                (Evidence("collectives on record", len(context.collectives)),),
                "Keep at least one whole training step inside audit().",
            )
        ]
    told = context.notices.loc[context.notices["kind"] == "rank-incomplete", "rank"]
    counts = context.step_rows.groupby("rank")["step"].nunique()
    counts = counts.reindex(list(context.ledger.run.ranks_seen), fill_value=0)
    short = counts[(counts < len(context.steps)) & ~counts.index.isin(told)]
    if short.empty:
        return []
    return [
        _finding(
            f"{ranks(int(rank) for rank in short.index)} finished fewer than the {len(context.steps)} steps",
            tuple(int(rank) for rank in short.index),
            tuple(Evidence(f"steps of rank {rank}", int(count)) for rank, count in short.items()),
            "A step is billed on the ranks that finished it; survey the same steps on every rank.",
        )
    ]


def _outside(context: Context) -> list[Finding]:
    frame = context.collectives[~context.collectives["step"].isin(context.steps)]
    if frame.empty or not context.steps:
        return []
    moved = frame["message_bytes"].sum(min_count=1)
    return [
        _finding(
            f"{times(len(frame), 'collective')} ({size(number(moved))} over all ranks) "
            "ran outside every surveyed step: listed, but not in the bill",
            tuple(sorted({int(rank) for rank in frame["rank"]})),
            (Evidence("ops", ", ".join(sorted(set(frame["op"])))),),
            "Set-up and check-points are expected here; put training work inside session.step().",
            severity="info",
        )
    ]


def _untimed(context: Context) -> list[Finding]:
    frame = context.in_steps
    untimed = frame[frame["exposed_ns"].isna()]
    if untimed.empty:
        return []
    return [
        _finding(
            f"{len(untimed):,} of {times(len(frame), 'collective')} have no known time and no toll",
            tuple(sorted({int(rank) for rank in untimed["rank"]})),
            (Evidence("ops", ", ".join(sorted(set(untimed["op"])))),),
            "Their counts and bytes are right; the times need a backend that reports them.",
            severity="info",
        )
    ]


def _finding(
    title: str,
    who: Iterable[int],
    evidence: tuple[Evidence, ...],
    remedy: str,
    *,
    severity: Severity = "warning",
) -> Finding:
    return Finding(
        kind="incomplete-input",
        severity=severity,
        title=title,
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=1,
        ranks=tuple(who),
        evidence=evidence,
        remedy=Remedy(remedy),
    )
