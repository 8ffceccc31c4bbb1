"""Parameters that ranks hold for themselves on purpose: experts, and the stages of a pipeline."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep

EXCHANGE: Final = "all_to_all"


@once
def pipelined(context: Context) -> bool:
    """Whether ranks send each other messages in steps: then equal names may be other layers."""
    frame = context.in_steps
    return bool((frame["op"].isin(PEER_OPS) & frame["phase"].isin(("forward", "backward"))).any())


@once
def exchanged(context: Context) -> frozenset[str]:
    """Return the parameters whose forward computes between two all_to_alls of an enclosing module.

    There the tokens are those of all ranks that were meant for this one. Each rank's parameter is its own, as
    an expert's. If operators are not on record, all parameters of the module are returned.
    """
    frame = context.in_steps
    frame = keep(frame, (frame["op"] == EXCHANGE) & (frame["phase"] == "forward") & frame["module"].notna())
    if frame.empty:
        return frozenset()
    step = frame["step"].isin(context.surveyed)
    frame = keep(frame, step) if step.any() else frame
    names = context.parameters["name"].drop_duplicates().astype(str)
    exchanged_names: set[str] = set()
    computes = context.computes_in_steps
    computes = keep(computes, (computes["phase"] == "forward") & computes["module"].notna())
    for module, calls in frame.drop_duplicates(["module", "rank"]).groupby("module", observed=True):
        inside = names[names.map(lambda name, under=str(module): below(name, under))]
        if inside.empty:
            continue
        rank, first_step = int(calls["rank"].iloc[0]), int(calls["step"].iloc[0])
        exchanges = _times(frame, str(module), rank, first_step)
        seen = keep(computes, (computes["rank"] == rank) & (computes["step"] == first_step))
        under = seen["module"].astype(str)
        seen = keep(seen, under.map(lambda name, top=str(module): below(name, top)))
        if seen.empty or len(exchanges) < 2:
            exchanged_names.update(inside)
            continue
        between = keep(
            seen, (seen["start_ns"] >= exchanges.iloc[0]) & (seen["start_ns"] <= exchanges.iloc[-1])
        )
        owners = {str(name) for name in between["module"]} - {str(module)}
        exchanged_names.update(str(name) for name in between["parameter"].dropna())
        exchanged_names.update(name for name in inside if any(below(name, owner) for owner in owners))
    return frozenset(exchanged_names)


def _times(frame: pd.DataFrame, module: str, rank: int, step: int) -> pd.Series[int]:
    rows = keep(frame, (frame["module"] == module) & (frame["rank"] == rank) & (frame["step"] == step))
    return rows["issue_ns"].dropna().astype("int64").sort_values()


def below(name: str, module: str) -> bool:
    """Whether a name is a module's or lies in it; the empty string is the whole model."""
    return not module or name == module or name.startswith(module + ".")
