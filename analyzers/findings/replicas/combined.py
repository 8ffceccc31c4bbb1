"""Parameters with which ranks compute other things that a module then adds up, as experts do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.compute_dtypes import formats, result_elements
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.needless.wide_dtype import LEAST_ELEMENTS, WIDTH
from shardtoll.analyzers.findings.replicas.local_parameters import below
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep

COMBINES: Final = ("all_reduce", "reduce_scatter")


@once
def combined(context: Context) -> dict[str, str]:
    """Return the parameters that may be each rank's own, as an expert's, with the module that adds up.

    The first surveyed step tells, when equal weights are still equal. Tensors gathered before anything is
    added up, as after a norm of a part of a sequence, are none of these. A part of the module with equal
    inputs on all ranks counts if it makes as much as is added up. An expert whose output is masked does so, a
    router does not. A part with other inputs counts unless its results divide the whole evenly: then a batch
    is split by hand.
    """
    calls, computes = context.in_surveyed, context.computes_in_steps
    calls = keep(calls, (calls["phase"] == "forward") & (calls["group_size"] > 1) & calls["issue_ns"].notna())
    computes = keep(computes, (computes["phase"] == "forward") & computes["module"].notna())
    if computes.empty or not calls["op"].isin(COMBINES).any():
        return {}
    first, every = computes["step"].astype(np.int64).min(), computes
    calls, computes = keep(calls, calls["step"] == first), keep(computes, computes["step"] == first)
    least = formats(context).least_product or LEAST_ELEMENTS
    ranks_of = context.members
    is_combined: dict[tuple[tuple[int, ...], str, str, int], bool] = {}
    modules: dict[str, str] = {}
    for rank in sorted(int(rank) for rank in computes["rank"].unique()):
        mine = keep(computes, computes["rank"] == rank)
        of_rank = keep(calls, calls["rank"] == rank).sort_values("issue_ns", kind="stable")
        issued_ns = of_rank["issue_ns"].to_numpy(dtype=np.int64)
        following = np.searchsorted(issued_ns, mine["start_ns"].to_numpy(dtype=np.int64))
        width = of_rank["dtype"].map(WIDTH).fillna(4).to_numpy(dtype=np.float64)
        elements = of_rank["message_bytes"].to_numpy(dtype=np.float64, na_value=0) / width
        adds = of_rank["op"].isin(COMBINES).to_numpy() & of_rank["module"].notna().to_numpy()
        # One more, for what nothing follows.
        followed = np.append(adds & (elements >= least), False)[following]
        rows = mine[["module", "parameter"]].assign(call=following)[followed]
        for module, name, call in rows.drop_duplicates().itertuples(index=False):
            row = of_rank.iloc[call]
            over, top = ranks_of.get((str(row["group"]), rank), ()), str(row["module"])
            if not over or not below(str(module), top):
                continue
            key = over, top, _part(str(module), top), round(elements[call])
            if key not in is_combined:
                is_combined[key] = _own(keep(every, every["rank"].isin(over)), first, over, key[2], key[3])
            if is_combined[key]:
                modules.update(dict.fromkeys(_named(context, str(module), name), top))
    return modules


def _part(module: str, top: str) -> str:
    """Return the child of `top` that the module is in; the module itself if it is in none."""
    before = f"{top}." if top else ""
    return module if module == top else before + module.removeprefix(before).partition(".")[0]


def _named(context: Context, module: str, parameter: object) -> list[str]:
    names = context.parameters["name"].drop_duplicates().astype(str)
    of_module = [str(name) for name in names[names.str.rpartition(".")[0] == module]]
    return [*of_module, str(parameter)] if isinstance(parameter, str) else of_module


def _own(computes: pd.DataFrame, first: int, ranks: Sequence[int], part: str, whole: int) -> bool:
    """Whether a part of a module may be each rank's own.

    `computes`: the ranks' operators of all surveyed steps; `whole`: elements that are added up in the first.
    """
    rows = keep(computes, computes["module"].astype(str).map(lambda name: below(name, part)))
    rows = rows.sort_values(["step", "rank", "index"], kind="stable")
    rows = rows.assign(nth=rows.groupby(["step", "rank", "module", "op"], observed=True).cumcount())
    calls = rows.groupby(["step", "module", "op", "nth"], observed=True)
    everywhere = calls["rank"].nunique() == len(ranks)
    alike = everywhere & (calls["input_hash"].nunique() == 1) & (calls["input_hash"].count() == len(ranks))
    results = {result_elements(str(shapes)) for shapes in rows["shapes"].unique()}
    if bool(alike.xs(first, level="step").all()):
        return whole in results
    # Tokens are hardly ever spread evenly by chance in each surveyed step.
    even = bool((everywhere & (calls["shapes"].nunique() == 1)).all())
    return not (even and whole in {len(ranks) * each for each in results if each})
