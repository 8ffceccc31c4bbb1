"""The finding of ranks that take turns in being late."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.origins.origin import origins
from shardtoll.analyzers.findings.stragglers.late_chance import confidence_in
from shardtoll.analyzers.findings.stragglers.lateness import late_to
from shardtoll.analyzers.shared.tally import Line
from shardtoll.ledger import Evidence, Finding, Remedy, Rows, Where
from shardtoll.ledger.words.human import percent, ranks, some_time
from shardtoll.ledger.words.human import plural as times

TINY_BYTES: Final = 1024
"""Messages up to this size take latency alone."""
REDUCE: Final = ("all_reduce", "reduce")
PASSES: Final = ("forward", "backward", "recompute")
LEAST_MEETINGS: Final = 8
"""Small messages per step at one line from which it is said to make ranks wait."""
MOST: Final = 0.5
"""Part of the waiting that one line must hold to be named."""


_EQUAL: Final = 1.01
"""Ratio of the most FLOPs of a rank to the fewest in a step, up to which ranks do the same work."""
_SAME_STEP: Final = "gc.disable()  # and gc.collect() on all ranks in the same step, every few hundred"
_SHAPES: Final = "print(step, dist.get_rank(), [tuple(x.shape) for x in batch])  # what differs by rank"


def turns_finding(context: Context, rest: pd.DataFrame, line: Line, besides: bool) -> Finding:
    """Return the finding; `besides`: other findings name single ranks."""
    once = late_to(rest)
    toll = line.figures["waited_ns"]
    bound = bool(rest["at_least"].any())
    who = tuple(sorted({int(rank) for rank in once["late_rank"]}))
    last = once["late_rank"].value_counts()
    meeting = _meeting(context, rest)
    return Finding(
        kind="straggler",
        severity="info",
        title=f"ranks wait {'at least ' if bound else ''}{some_time(toll)} per step "
        f"({percent(context.share(toll, context.timed) or 0.0)}) for late ranks in "
        f"{_which(context, len(once), besides)}, and no single rank is the cause "
        f"({ranks((int(last.index[0]),))} is last most often, {last.iloc[0]} of {len(once)})",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=max(1, round(len(once) / len(context.alike))),
        ranks=who,
        where=Where() if meeting is None else Where(source=meeting[0]),
        rows=Rows.of(collectives=rest.index),
        evidence=(
            Evidence("collectives", len(once)),
            Evidence("ranks that were last", len(who)),
            Evidence("most often last", f"rank {last.index[0]}: {last.iloc[0]} of {len(once)}"),
            Evidence("after the second-to-last rank, median collective", int(once["late_ns"].median()), "ns"),
        ),
        remedy=_advice(context) if meeting is None else _meet_less(*meeting),
        confidence="possible" if bound else confidence_in(context, rest, len(once)),
    )


def _advice(context: Context) -> Remedy:
    """Return what to look at if ranks take turns at no one place."""
    if len(context.alike) <= 1:
        return Remedy(
            "Record at least five steps first: one step does not show whether the same ranks are late again. "
            "Then compare the ranks' batches (sequence lengths, experts' loads) and noise on their hosts.",
            f"{_SHAPES}\n{_SAME_STEP}",
        )
    if _work_is_equal(context):
        return Remedy(
            "Look for noise on the hosts: other processes, garbage collection, checkpoints. All ranks have "
            "equal FLOPs in each surveyed step, so the sizes of their batches are hardly the cause.",
            _SAME_STEP,
        )
    return Remedy(
        "Print each rank's batch shapes: sequence lengths or experts' loads may differ from batch to "
        "batch. Else look for noise on the hosts (other processes, garbage collection, checkpoints).",
        f"{_SHAPES}\n{_SAME_STEP}",
    )


def _meeting(context: Context, rest: pd.DataFrame) -> tuple[str, int] | None:
    """Return the line whose small messages hold most of the waiting, and how many a step has; None without.

    Each message makes ranks meet, and whoever is a little later then makes the others wait.
    """
    rows = context.in_alike.loc[rest.index, ["source", "message_bytes", "match_id", "step", "op", "phase"]]
    # The model itself needs messages in its passes, as statistics of a batch, each time.
    beside = rows["op"].isin(REDUCE) & ~rows["phase"].isin(PASSES)
    small = (rows["message_bytes"] <= TINY_BYTES).fillna(False) & rows["source"].notna() & beside
    waited = rest["waited_ns"][small].groupby(rows["source"][small]).sum()
    if waited.empty or float(waited.max()) < MOST * float(rest["waited_ns"].sum()):
        return None
    source = str(waited.idxmax())
    here = rows[small & (rows["source"] == source)]
    count = round(here["match_id"].nunique() / len(context.alike))
    return (source, count) if count >= LEAST_MEETINGS else None


def _meet_less(source: str, count: int) -> Remedy:
    """Return advice for a line where ranks meet so many times per step."""
    return Remedy(
        f"Reduce less often at {source}, or put several values into one message. Ranks meet there {count:,} "
        "times per step, and each time all wait for the last one.",
        "if step % 10 == 0:\n    dist.all_reduce(torch.stack(values))  # all values in one message",
    )


def _work_is_equal(context: Context) -> bool:
    """Return whether all ranks seen compute as many FLOPs in each surveyed step; False if that is unknown."""
    computes = context.computes_in_steps
    flops = computes["flops"].astype("float64").groupby([computes["step"], computes["rank"]]).sum()
    table = flops.unstack()
    if table.empty or table.isna().any(axis=None) or len(table.columns) < len(context.ledger.run.ranks_seen):
        return False
    most, fewest = table.max(axis=1), table.min(axis=1)
    return bool(((fewest > 0) & (most <= _EQUAL * fewest)).all())


def _which(context: Context, count: int, besides: bool) -> str:
    slow = [origin.rank for origin in origins(context)]
    if slow:
        verb = "causes" if len(slow) == 1 else "cause"
        return f"{times(count, 'collective')} beyond what {ranks(slow)} {verb}"
    return times(count, "other collective" if besides else "collective")
