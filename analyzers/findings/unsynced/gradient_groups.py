"""Groups of ranks over which gradients of the program are reduced, as far as records without values tell."""

from __future__ import annotations

import re
from typing import Any, Final

import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.reductions import REDUCES, reductions
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import begins_with, codes, keep, numbered, text
from shardtoll.ledger.records import ddp_causes

REDUCERS: Final = {
    ddp_causes.REDUCER: "DDP",
    "FullyShardedDataParallel": "FSDP1",
    "FSDP1": "FSDP1",
    "FSDP": "FSDP2",
}
"""How the cause of a wrapper's reduction begins -> the wrapper. The table of parameters knows which ones
these reduce."""

MANY: Final = "..."
"""Begins what follows the first of many names."""


class Reducing(Struct, frozen=True):
    """Ranks over which gradients were reduced."""

    over: tuple[int, ...]
    steps: frozenset[int]
    """In which."""
    names: frozenset[str]
    """Parameters whose gradients the program reduced itself."""
    wrapper: str | None
    """The wrapper that reduces others; None if none does."""
    source: str | None
    """The line at which the program reduces them."""
    reduce_op: str | None
    mesh_dim: str | None


@once
def reducing(context: Context) -> list[Reducing]:
    """Return the groups over which some step reduced gradients; one a set of ranks."""
    by_hand, by_wrapper = _by_hand(context), _by_wrapper(context)
    groups = []
    for over in sorted({*by_hand, *by_wrapper}):
        hand, wrapped = by_hand.get(over), by_wrapper.get(over)
        every = [frame for frame in (hand, wrapped) if frame is not None]
        first = every[0].iloc[0]
        groups.append(
            Reducing(
                over=over,
                steps=frozenset(int(step) for frame in every for step in frame["step"].unique()),
                names=_names(context, hand),
                wrapper=None if wrapped is None else _wrapper(str(wrapped["caused_by_op"].iloc[0])),
                source=None if hand is None else _most(hand["source"]),
                reduce_op=None if hand is None else _most(hand["reduce_op"]),
                mesh_dim=text(first["mesh_dim"]),
            )
        )
    return groups


def _by_hand(context: Context) -> dict[tuple[int, ...], pd.DataFrame]:
    """Return the reductions that the program asks for itself, of gradients that it names."""
    frame = reductions(context)
    frame = keep(
        frame,
        frame["over"].notna()
        & ~frame["implicit"].fillna(False).astype(bool)
        & ~begins_with(frame["caused_by_op"], (*REDUCERS, ddp_causes.DDP)),
    )
    of_each = (rows for _, rows in frame.groupby(numbered(frame, ["over"])))
    return {rows["over"].iloc[0]: rows for rows in of_each}


def _by_wrapper(context: Context) -> dict[tuple[int, ...], pd.DataFrame]:
    frame = context.in_steps
    frame = keep(
        frame,
        frame["op"].isin(REDUCES)
        & (frame["phase"] == "backward")
        & (frame["group_size"] > 1)
        & begins_with(frame["caused_by_op"], tuple(REDUCERS)),
    )
    sets: dict[tuple[int, ...], list[pd.DataFrame]] = {}
    members = context.members
    numbers, first = codes(frame, ["group", "rank"])
    of_each = [rows for _, rows in frame.groupby(numbers)]
    for rows, (group, rank) in zip(of_each, first[["group", "rank"]].itertuples(index=False), strict=True):
        over = members.get((str(group), int(rank)))
        if over is not None:
            sets.setdefault(over, []).append(rows)
    return {over: pd.concat(rows) for over, rows in sets.items()}


def _names(context: Context, rows: pd.DataFrame | None) -> frozenset[str]:
    if rows is None:
        return frozenset()
    names = frozenset(rows["name"].astype(str))
    # A call of many names its first, so it has one row.
    calls = keep(rows, begins_with(rows["parameter"].astype(str).str.partition(", ")[2], MANY))
    if calls.empty:
        return names
    counts = calls["parameter"].map(how_many).groupby([calls["rank"], calls["step"]]).sum()
    # Those of which other groups reduce a part name only their first ones.
    seen = carried(context)
    return names | seen if int(counts.max()) >= len(seen) else names


def names_in(text: Any) -> frozenset[str]:
    """Return the parameters that a collective names: of many the first; none if the text is unknown."""
    if text is None or pd.isna(text):
        return frozenset()
    return frozenset(name for name in str(text).split(", ") if not name.startswith(MANY))


def is_many(text: object) -> bool:
    """Whether a collective holds more parameters than it names."""
    return f", {MANY}" in str(text)


def how_many(text: object) -> int:
    """Return the number of parameters that a collective of many says it holds; else how many it names."""
    said = re.search(r"\((\d+) parameters\)$", str(text)) if is_many(text) else None
    return len(names_in(text)) if said is None else int(said[1])


@once
def carried(context: Context) -> frozenset[str]:
    """Return the parameters that were seen in a collective of many, which does not name them."""
    table = context.model
    return frozenset(table["name"][table["carried"].fillna(False).astype(bool)].astype(str))


def _wrapper(cause: str) -> str:
    return next(name for beginning, name in REDUCERS.items() if cause.startswith(beginning))


def _most(column: pd.Series[Any]) -> str | None:
    counts = column.dropna().astype(str).value_counts()
    return None if counts.empty else str(counts.index[0])
