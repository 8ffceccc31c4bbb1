"""The same work done on several ranks: by DTensor placements, or by equal inputs and outputs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.tally import Codes, Line, codes, keep, tally
from shardtoll.analyzers.words import duration, flops, place, times
from shardtoll.analyzers.words import ranks as rank_words
from shardtoll.ledger import Evidence, Finding, Remedy

OPERATOR: Final = ("step", "op", "phase", "module", "shapes", "flops")
"""What operators of two ranks must share to be the same one, beside order and values."""

KEYS: Final = ("op", "phase", "module", "parameter", "shapes", "source", "factor", "basis")

LEAST_SHARE: Final = 0.01
"""Share of the step (of its FLOPs, where times are unknown) from which it is a warning."""


def _mesh_size(context: Context, dim: str) -> int | None:
    """Return the size of a mesh dimension, from the mesh or else from its groups; None unknown."""
    size = context.ledger.run.mesh.get(dim)
    sizes = {group.size for group in context.ledger.groups if group.mesh_dim == dim}
    return size if size is not None else sizes.pop() if len(sizes) == 1 else None


def _by_placement(context: Context, frame: pd.DataFrame) -> Codes:
    """Return for each operator on how many ranks its replicated inputs make it the same work; 1 none."""
    factors = {}
    for dims in frame["replicated_over"].dropna().unique():
        sizes = [_mesh_size(context, dim.strip()) for dim in str(dims).split(",") if dim.strip()]
        factors[dims] = math.prod(size for size in sizes if size is not None)
    return frame["replicated_over"].map(factors).fillna(1).to_numpy(dtype=np.int64)


def _by_value(frame: pd.DataFrame) -> Codes:
    """Return for each operator how many ranks did it with equal inputs and outputs; 1 where only its own.

    Operators of constant tensors and those without fingerprints prove nothing, but keep their
    place in the order.
    """
    frame = frame.reset_index(drop=True).sort_values(["rank", "step", "index"], kind="stable")
    operator, _ = codes(frame, [*OPERATOR, "rank"])
    nth = pd.Series(operator, index=frame.index).groupby(operator).cumcount()
    sound = frame["input_hash"].notna() & frame["output_hash"].notna() & ~frame["constant"].astype(bool)
    usable = keep(frame.assign(nth=nth), sound)
    same, _ = codes(usable, [*OPERATOR, "nth", "input_hash", "output_hash"])
    counts = np.ones(len(frame), dtype=np.int64)
    counts[usable.index.to_numpy()] = np.bincount(same, minlength=1)[same] if len(same) else 1
    return counts


def find(context: Context) -> list[Finding]:
    """Return one finding an operator: op, phase, module, shapes, line.

    Each operator is counted once, by whichever of the two proofs shows more ranks. The toll is the
    mean duration over its ranks, per surveyed step, times (1 - 1/ranks); None where operators have no
    durations. The counterfactual is each rank doing its share of the work, so the saving is the
    whole toll; FLOPs are exact sums over the ranks seen.
    """
    frame = context.computes_in_steps
    if frame.empty:
        return []
    by_placement, by_value = _by_placement(context, frame), _by_value(frame)
    frame = frame.assign(
        factor=np.maximum(by_placement, by_value),
        basis=np.where(by_placement >= by_value, "placements", "fingerprints"),
    )
    all_flops = int(frame["flops"].sum())
    frame = keep(frame, (frame["factor"] > 1) & (frame["flops"] > 0))
    if frame.empty:
        return []
    factor = frame["factor"].to_numpy(dtype=np.int64)
    extra = frame["duration_ns"].to_numpy(dtype=np.int64, na_value=0) * (factor - 1) // factor
    unknown = frame["duration_ns"].isna().to_numpy(dtype=bool)
    frame = frame.assign(extra_ns=pd.arrays.IntegerArray(extra, unknown))
    result = tally(frame, KEYS, ("extra_ns",), context.surveyed, over_ranks="mean")
    rows_of = frame.groupby(result.code).indices
    return [_finding(context, line, frame.iloc[rows_of[line.code]], all_flops) for line in result.lines]


def _finding(context: Context, line: Line, rows: pd.DataFrame, all_flops: int) -> Finding:
    toll, ways, dims = line.figures["extra_ns"], int(line.first["factor"]), line.text("replicated_over")
    op, shown_by_placements = str(line.first["op"]), line.first["basis"] == "placements"
    done, needed, span = _work(rows, ways)
    share = context.share(toll)
    flops_in_all = int(rows["flops"].sum())
    weight = share if share is not None else flops_in_all * (1 - 1 / ways) / all_flops
    shown_by = (
        f"every input is Replicate over {dims}"
        if shown_by_placements
        else "same operator in the same order with equal inputs and outputs (fingerprints) on each rank"
    )
    return Finding(
        kind="duplicated-compute",
        severity="warning" if weight >= LEAST_SHARE else "info",
        title=f"{op}{place(line.text('module'), line.text('source'))} does the same work {ways} times in "
        f"{line.first['phase']}, on {rank_words(line.ranks)}: {flops(done)} where {flops(needed)} are needed",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=toll,
        bytes=None,
        count=line.count,
        ranks=line.ranks,
        where=replace(
            line.where("phase", "module", "source", op=op, parameter=line.text("parameter")),
            mesh_dim=dims if shown_by_placements else None,
        ),
        evidence=(
            Evidence("factor", ways, "x"),
            Evidence("FLOPs done", done, "FLOP"),
            Evidence("FLOPs needed", needed, "FLOP"),
            Evidence("FLOPs are summed over", span),
            Evidence("FLOPs of one", int(line.first["flops"]), "FLOP"),
            Evidence("shapes", line.text("shapes")),
            Evidence("shown by", shown_by),
            Evidence("operators in all steps and ranks", line.total),
        ),
        remedy=_remedy(dims if shown_by_placements else None, ways, toll),
        confidence="certain" if shown_by_placements else "likely",
    )


def _work(rows: pd.DataFrame, ways: int) -> tuple[int, int, str]:
    """Return FLOPs done and needed, and over what they are summed: one step where all steps agree."""
    per_step = rows.groupby("step")["flops"].sum()
    if per_step.nunique() == 1:
        done, span = int(per_step.iloc[0]), "one step, all ranks seen"
    else:
        done, span = int(per_step.sum()), f"{times(len(per_step), 'step')}, all ranks seen"
    return done, -(-done // ways), span


def _remedy(dims: str | None, ways: int, toll: int | None) -> Remedy:
    over = f" over {dims}" if dims else ""
    return Remedy(
        text=f"Give each rank its share{over}: shard one operand, or slice the input before the operator and "
        "reduce or gather the smaller result. Where every rank is meant to hold the result, replicas spare "
        "a collective: that is a choice, and this is its price.",
        code="x = x.redistribute(placements=[Shard(0)])  # or x.chunk(world_size)[rank], before the operator",
        counterfactual=None
        if toll is None
        else f"each of {ways} ranks doing 1/{ways} of the work "
        f"({duration(toll)} less), whatever it takes to bring the parts together not counted",
    )
