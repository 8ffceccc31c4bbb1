"""Which ranks are there to see different data: those that reduce their gradients together."""

from __future__ import annotations

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.reductions import mesh_groups, reductions
from shardtoll.analyzers.findings.replicas.replicas import held
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import begins_with, keep, text
from shardtoll.analyzers.shared.wrapper_causes import WRAPPER_CAUSES


@once
def data_parallel(context: Context) -> list[tuple[int, ...]]:
    """Return the sets of ranks that are data-parallel: their gradients are reduced together.

    By a wrapper (DDP, FSDP), or by the program for most of the parameters that nothing else reduces. A
    mesh dimension along which DTensors are spread without a wrapper is tensor parallelism: its ranks share
    data.
    """
    rows = held(context)
    groups = context.members
    sets: list[tuple[int, ...]] = []
    wrapped = keep(rows, rows["wrapper"].notna() & rows["group"].notna())
    for group, rank in wrapped[["group", "rank"]].drop_duplicates().itertuples(index=False):
        over = groups.get((str(group), int(rank)))
        if over is not None and len(over) > 1:
            sets.append(over)
    sets += _of_wrappers(context)
    sets += _by_hand(context, rows)
    return _joined(sets)


def _of_wrappers(context: Context) -> list[tuple[int, ...]]:
    """Return the groups over which wrappers reduced in backward: the second dimension of HSDP is one."""
    frame = context.in_steps
    frame = keep(
        frame,
        frame["op"].isin(("all_reduce", "reduce_scatter"))
        & (frame["phase"] == "backward")
        & begins_with(frame["caused_by_op"], WRAPPER_CAUSES),
    )
    pairs = frame[["group", "rank"]].drop_duplicates()
    groups = context.members
    reduced_over = (groups.get((str(group), int(rank))) for group, rank in pairs.itertuples(index=False))
    return [over for over in reduced_over if over is not None and len(over) > 1]


def _by_hand(context: Context, rows: pd.DataFrame) -> list[tuple[int, ...]]:
    """Return the groups over which the program reduces the gradients of most plain parameters."""
    frame = reductions(context)
    frame = keep(frame, frame["over"].notna() & ~frame["implicit"].fillna(False).astype(bool))
    if frame.empty:
        return []
    spread: set[str] = set()
    for dims, wrapper in rows[["mesh_dims", "wrapper"]].drop_duplicates().itertuples(index=False):
        if text(wrapper) is None:
            spread.update(dim.strip() for dim in (text(dims) or "").split(",") if dim.strip())
    tensor_parallel = {tuple(sorted(over)) for dim in spread for over in mesh_groups(context).get(dim, [])}
    reduced = frame.groupby("over")["name"].nunique()
    plain = rows[rows["wrapper"].isna().to_numpy(dtype=bool)]["name"].nunique()
    sets: list[tuple[int, ...]] = []
    for over, count in zip(reduced.index.tolist(), reduced.tolist(), strict=True):
        if over not in tensor_parallel and 2 * int(count) > int(plain):
            sets.append(over)
    return sets


def _joined(sets: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the sets with those that overlap made one."""
    joined: list[set[int]] = []
    for over in sets:
        mine = set(over)
        apart = [other for other in joined if not other & mine]
        for other in joined:
            if other & mine:
                mine |= other
        joined = [*apart, mine]
    return sorted(tuple(sorted(ranks)) for ranks in joined)
