"""Gradients that are a part as they are held and are added up elsewhere, as in ZeRO's one flat buffer."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.memo import once
from shardtoll.analyzers.reductions import BACKWARD, REDUCES, members
from shardtoll.analyzers.replicas import Replicas
from shardtoll.analyzers.tally import keep

SIZES: Final = {"float64": 8, "float32": 4}
"""Bytes of an element; the other dtypes of gradients have two."""


@once
def _largest(context: Context) -> dict[tuple[int, tuple[int, ...]], int]:
    """Return for each step and set of ranks the largest message that added something up after forward."""
    return _sizes(context, context.in_steps)


@once
def _unnamed(context: Context) -> dict[tuple[int, tuple[int, ...]], int]:
    """Return the same of the messages that name no parameter, as those of one flat buffer."""
    return _sizes(context, keep(context.in_steps, context.in_steps["parameter"].isna()))


def _sizes(context: Context, frame: pd.DataFrame) -> dict[tuple[int, tuple[int, ...]], int]:
    frame = keep(frame, frame["op"].isin(REDUCES) & frame["phase"].isin(BACKWARD))
    frame = keep(frame, frame["message_bytes"].notna())
    known = members(context)
    found: dict[tuple[int, tuple[int, ...]], int] = {}
    columns = frame[["step", "group", "rank", "message_bytes"]].drop_duplicates()
    for step, group, rank, size in columns.itertuples(index=False):
        over = known.get((str(group), int(rank)))
        if over is not None:
            key = (int(step), over)
            found[key] = max(found.get(key, 0), int(size))
    return found


@once
def _moved(context: Context) -> dict[str, pd.DataFrame]:
    """Return each parameter's fingerprints, a row a step (-1 before the first), a column a rank."""
    values = context.values
    rows = keep(values, (values["kind"] == "parameter") & values["hash"].notna())
    rows = rows.assign(step=rows["step"].fillna(-1).astype("int64"), hash=rows["hash"].astype("int64"))
    return {
        str(name): of_name.pivot_table(index="step", columns="rank", values="hash", aggfunc="first")
        for name, of_name in rows.groupby("name", observed=True, sort=False)
    }


def reduced_later(context: Context, one: Replicas, step: int, numel: int, dtype: str) -> bool:
    """Whether these ranks' unequal gradients moved the parameter equally, bit for bit, in a step.

    Then the optimizer did not take them as they are. That they were added up needs a message too that has
    room for them: where parameters are only copied from one rank the others' gradients are lost.
    """
    table = _moved(context).get(one.name)
    least = numel * SIZES.get(dtype, 2)
    if one.basis == "start" and (table is None or not (table.index >= 0).any()):
        # How the parameter moved was not asked for: only that they may have been added up is known.
        return _room(_unnamed(context), one, step, least)
    if table is None or step not in table.index or not set(one.ranks) <= set(table.columns):
        return False
    after = table.loc[step, list(one.ranks)]
    before = table.loc[table.index < step, one.ranks[0]]
    equal = after.notna().all() and after.nunique() == 1
    if not equal or before.empty or before.iloc[-1] == after.iloc[0]:
        return False
    return _room(_largest(context), one, step, least)


def _room(sizes: dict[tuple[int, tuple[int, ...]], int], one: Replicas, step: int, least: int) -> bool:
    return any(
        at == step and set(one.ranks) <= set(over) and size >= least for (at, over), size in sizes.items()
    )
