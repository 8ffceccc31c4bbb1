"""Training waits while a checkpoint is written: how long, how many bytes, and how often one pays.

A save falls into one step of many, so its time is counted over all steps of the run. Failures decide its
further cost: the interval that loses least is Daly's, with the failure rate of a published run.
"""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stalls.stalled import NAMED, rarely
from shardtoll.analyzers.shared.checkpoint_bytes import written
from shardtoll.analyzers.shared.checkpoint_interval import LLAMA3, best_interval_s, goodput
from shardtoll.analyzers.shared.tally import keep, steps_spoken_of, text
from shardtoll.ledger import Evidence, Figure, Finding, Remedy, Where
from shardtoll.ledger.words.human import duration, plural, ranks, rate, size

LEAST_NS: Final = 1_000_000
"""Blocked time of one save from which it is worth saying."""
WARNING_SHARE: Final = 0.05
"""Share of all recorded time, steps and saves together."""
TEXT: Final = (
    "Write the checkpoint in the background (`async_save`), or write it less often: the evidence has the "
    "interval that loses least."
)
CODE: Final = (
    "import torch.distributed.checkpoint as dcp\n"
    "future = dcp.async_save(state, checkpoint_id=path)  # blocks for the copy to host memory only"
)
COUNTERFACTUAL: Final = "the same steps with nothing written: an upper bound, as a copy to host memory stays"


def find(context: Context) -> list[Finding]:
    """Return at most one finding: the saves of the rank that they block longest."""
    rows = context.stalls
    rows = keep(rows, (rows["kind"] == "checkpoint") & rows["step"].notna())
    if rows.empty:
        return []
    by_rank = rows.groupby("rank")[["total_ns", "count"]].sum()
    worst = int(by_rank.index[int(by_rank["total_ns"].argmax())])
    spent, saves = int(by_rank["total_ns"][worst]), max(1, int(by_rank["count"][worst]))
    each_ns = round(spent / saves)
    if each_ns < LEAST_NS:
        return []
    steps = context.step_rows
    mine = keep(steps, steps["rank"] == worst)
    count = max(1, mine["step"].nunique())
    before = rows["before_ns"].fillna(0)
    outside = float(before[rows["rank"] == worst].sum())
    share = spent / max(1.0, float(mine["duration_ns"].sum()) + outside)
    who = tuple(int(rank) for rank in by_rank.index[by_rank["total_ns"] >= NAMED * by_rank["total_ns"].max()])
    return [_finding(context, rows, worst, who, spent, saves, count, share)]


def _finding(
    context: Context,
    rows: pd.DataFrame,
    worst: int,
    who: tuple[int, ...],
    spent: int,
    saves: int,
    steps: int,
    share: float,
) -> Finding:
    here = keep(rows, rows["rank"] == worst)
    places = here.groupby(["source", "name"], dropna=False)["total_ns"].sum()
    source, name = (text(value) for value in places.index[int(places.argmax())])
    each_ns = round(spent / saves)
    wrote = written(
        {**row, "bytes": None if pd.isna(row["bytes"]) else row["bytes"]}
        for row in rows[["rank", "count", "total_ns", "bytes"]].to_dict("records")
    )
    world = context.ledger.run.world_size
    between_s = 86400 / (LLAMA3.per_gpu_day * world)
    interval_s = best_interval_s(each_ns / 1e9, between_s)
    amount = "" if wrote is None else f" for {size(wrote.bytes)} ({rate(wrote.gbps)})"
    by_source = "" if source is None else f", at {source}"
    verb = "waits" if len(who) == 1 else "wait"
    often = rarely(saves, steps) if saves < steps else f"{saves / steps:.3g} per step"
    # Inside a step only idle time is its own: collectives of a save are on the bill already.
    lost = float(here["before_ns"].fillna(0).sum() + here["lost_ns"].sum())
    evidence = [
        Evidence("blocked by one checkpoint on the worst rank", each_ns, "ns"),
        Evidence("worst rank", worst),
        Evidence("checkpoints there", saves),
        Evidence("share of steps and saves", round(share, 4), "share"),
    ]
    if wrote is not None:
        evidence += [
            Evidence("written by all ranks, one checkpoint", wrote.bytes, "bytes"),
            Evidence("written per second", round(wrote.gbps, 4), "GB/s"),
        ]
    evidence += [
        Evidence("best time between checkpoints, by Daly", round(interval_s * 1e9), "ns"),
        Evidence(
            f"mean time between failures of {plural(world, 'GPU')}: {LLAMA3.source}",
            round(between_s * 1e9),
            "ns",
        ),
        Evidence(
            "share of the time that makes progress then, 10 minutes to recover",
            round(goodput(interval_s, each_ns / 1e9, 600.0, between_s), 4),
            "share",
        ),
    ]
    return Finding(
        kind="checkpoint-stall",
        severity="warning" if share >= WARNING_SHARE else "info",
        title=f"{ranks(who)} {verb} {duration(each_ns)} while a checkpoint is written{amount}, "
        f"{often}{by_source}",
        toll_ns=round(lost / steps),
        floor_ns=None,
        saving_ns=None,
        bytes=None if wrote is None else wrote.bytes,
        count=1,
        ranks=who,
        rows=steps_spoken_of(context.step_rows, who, rows["step"].unique()),
        where=Where(phase="other", source=source, op=name),
        evidence=tuple(evidence),
        remedy=Remedy(TEXT, CODE, COUNTERFACTUAL),
        confidence="certain",
        figures=(
            Figure("blocked_ns", each_ns, "ns"),
            Figure("interval_ns", round(interval_s * 1e9), "ns"),
            Figure("before_step_ns", round(float(here["before_ns"].fillna(0).sum()) / steps), "ns"),
        ),
    )
