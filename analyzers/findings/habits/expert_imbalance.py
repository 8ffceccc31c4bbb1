"""Experts that get far more tokens on one rank than on the others, which then wait for it."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.crowded import crowded
from shardtoll.analyzers.findings.habits.exchanges import computed_between, exchanges
from shardtoll.analyzers.findings.habits.habit import LEAST_STEPS, WARNING_SHARE
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import Line, Tally, keep, number, tally
from shardtoll.ledger import Evidence, Figure, Finding, Remedy, Rows
from shardtoll.ledger.words.human import duration, others, percent, place

LEAST: Final = 1.2
"""Received bytes of the busiest rank over the mean, below which there is no finding."""

LARGE: Final = 1.5
"""From which uneven load is a warning whichever rank is the busiest."""

STEADY: Final = 0.75
"""Share of the exchanges with the same busiest rank, from which the load is uneven by habit."""

EXPLAINED: Final = 0.6
"""Share of the waiting, where results are brought back, that must be for the busiest rank."""

SAME: Final = 1e-9
"""Loads over the mean that differ by less are equal: divisions differ that much."""

REMEDY: Final = "\n".join(
    (
        "# scores: [tokens, experts] of the router; chosen: [tokens], the expert of each token",
        "share = torch.bincount(chosen, minlength=scores.shape[-1]) / chosen.numel()",
        "uneven = scores.shape[-1] * (share * scores.softmax(-1).mean(0)).sum()  # 1 if even",
        "loss = loss + 0.01 * uneven",
    )
)


class Bill(Struct, frozen=True):
    """The exchanges of one place, and the waiting where they bring back."""

    there: pd.DataFrame
    waits: pd.Series[Any]
    """Exposed waiting for the busiest rank, by row of the collectives; empty if none is known."""
    tally: Tally
    line: Line
    over_mean: float
    steady: int | None
    """The rank that is nearly always the busiest."""
    with_weights: bool | None


@once
def bills(context: Context) -> list[Bill]:
    """Return one bill a group and place whose exchanges are uneven, not by the same shares in each step."""
    frame = exchanges(context)
    if frame.empty or len(context.alike) < LEAST_STEPS:
        return []
    made = []
    result = tally(frame, ("group", "net", "lines"), ("message_bytes",), context.alike)
    for line in result.lines:
        there = frame[result.code == line.code]
        over_mean = float(there.groupby("match_id")["received_bytes"].max().sum()) / float(
            there.groupby("match_id")["mean"].first().sum()
        )
        if over_mean < LEAST or there["step"].nunique() < LEAST_STEPS or _by_design(there):
            continue
        with_weights = computed_between(context, there)
        if with_weights is False:
            continue
        once_each = there.drop_duplicates("match_id")["busiest"]
        often = once_each.value_counts()
        steady = number(often.index[0]) if len(often) and often.iloc[0] >= STEADY * len(once_each) else None
        waits = _waits(context, there)
        made.append(Bill(there, waits, result, line, over_mean, steady, with_weights))
    return made


def _by_design(there: pd.DataFrame) -> bool:
    """Whether the ranks' shares are the same in all steps, as of shards that cannot be cut evenly."""
    of_place = there.groupby(["rank", "phase", "nth"])["load"]
    return bool((of_place.max() - of_place.min() <= SAME).all())


def _waits(context: Context, there: pd.DataFrame) -> pd.Series[Any]:
    """Return the exposed waiting for the busiest rank at the return exchange. Empty if others, or something
    else, explain most of the waiting, or it is unknown."""
    back = context.collectives.loc[there["back"], ["rank", "late_rank", "waited_ns"]]
    waited = back["waited_ns"].where(back["late_rank"] != back["rank"], 0)
    busy = back["late_rank"].to_numpy() == there["busiest"].to_numpy()
    for_it = waited[pd.Series(busy, index=back.index).fillna(False).astype(bool)]
    nothing: pd.Series[Any] = waited.iloc[:0]
    if waited.isna().any() or not waited.sum() or for_it.sum() < EXPLAINED * waited.sum():
        return nothing
    costly: pd.Series[Any] = for_it[for_it > 0]
    return costly


@once
def billed_ns(context: Context) -> pd.Series[Any]:
    """Return, by row of the collectives' frame, the exposed waiting that these findings bill."""
    parts = [bill.waits for bill in bills(context)]
    billed: pd.Series[Any] = pd.concat(parts) if parts else pd.Series(dtype="int64")
    return billed


def billed_matches(context: Context) -> pd.Series[Any]:
    """Return the matches of the collectives in which that waiting is."""
    matches: pd.Series[Any] = context.collectives.loc[billed_ns(context).index, "match_id"]
    return matches


def find(context: Context) -> list[Finding]:
    """Return one finding a group and place where the busiest rank receives well above the mean.

    Toll: exposed waiting for that rank where the results are brought back, which `straggler` then leaves out.
    Saving: what is left of it with the mean load on every rank, as waiting grows with the load.
    """
    return [_finding(context, bill) for bill in bills(context)]


def _cost(context: Context, bill: Bill) -> tuple[int | None, int | None]:
    """Return toll and saving."""
    there = bill.there
    if bill.waits.empty:
        return None, None
    most = there.groupby("match_id")["load"].transform("max")
    # A rank of load l waits for most - l; with the mean everywhere the step is most - 1 shorter.
    part = ((most - 1) / (most - there["load"])).clip(upper=1.0)
    part.index = pd.Index(there["back"])
    waits = bill.waits
    saved = (waits.astype("float64") * part.reindex(waits.index)).round().astype("int64")
    rows = context.collectives.loc[waits.index, ["step", "rank"]].assign(
        waited_ns=waits, saved_ns=saved, all=0
    )
    (line,) = tally(rows, ("all",), ("waited_ns", "saved_ns"), context.alike, times_in=context.timed).lines
    toll, saving = line.figures["waited_ns"], line.figures["saved_ns"]
    return toll, None if toll is None or saving is None else min(toll, saving)


def _finding(context: Context, bill: Bill) -> Finding:
    line, there = bill.line, bill.there
    toll, saving = _cost(context, bill)
    share = context.share(saving, context.timed) or 0.0
    uneven = bill.steady is not None or bill.over_mean >= LARGE
    dear = share >= WARNING_SHARE and uneven and crowded(context) is None and bill.with_weights is True
    forward = keep(there, there["phase"] == "forward")
    first = (there if forward.empty else forward).iloc[0]
    who = "the busiest rank" if bill.steady is None else f"rank {bill.steady}"
    waiting = others(context.ledger.run.world_size - 1, "wait")
    costs = "" if toll is None else f", and {waiting} {duration(toll)} per step for it"
    loads = there.groupby("rank")["load"].mean()
    where = line.where("group", "mesh_dim")
    source, module = (None if pd.isna(first[name]) else str(first[name]) for name in ("source", "module"))
    return Finding(
        kind="expert-imbalance",
        severity="warning" if dear else "info",
        title=f"{who} receives {bill.over_mean:.2f} times the mean of what all_to_all hands out on "
        f"{line.first['net']}{place(module, source)}{costs}",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=saving,
        bytes=line.figures["message_bytes"],
        count=line.count,
        ranks=line.ranks,
        where=type(where)(
            phase=str(first["phase"]),
            module=module,
            source=source,
            group=where.group,
            mesh_dim=where.mesh_dim,
        ),
        rows=Rows.of(collectives=[*there.index, *there["back"]]),
        evidence=(
            Evidence("exchanges compared", int(there["match_id"].nunique())),
            Evidence("received by the busiest rank, over the mean", round(bill.over_mean, 3), "x"),
            Evidence("rank that is the busiest nearly always", bill.steady),
            Evidence(
                "mean load of each rank", ", ".join(f"{rank}: {load:.2f}" for rank, load in loads.items())
            ),
            Evidence("saving, share of the step", percent(share) if saving is not None else None),
        ),
        figures=(Figure("busiest_over_mean", round(bill.over_mean, 4), "x"),),
        remedy=Remedy(
            "Balance the router: add a loss on the experts' shares, or give each expert a capacity.",
            REMEDY,
            None if saving is None else "the same step with the mean load on every rank",
        ),
        confidence="likely" if bill.with_weights else "possible",
    )
