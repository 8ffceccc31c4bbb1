"""Total gradient norms that count a replica more than once, or a part of the model only.

The truth is the sum over all parameters of the squares of each different part, each counted once, whichever
ranks hold it. Two ways of taking a norm are looked at. One is torch's functions, which leave `norm` rows. The
other is a sum of squares that the program adds up over ranks itself, known by its value.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.agreement import EPS, WHOLE, rows_of, whole_contents
from shardtoll.analyzers.findings.replicas.clipped_norms import as_one, clipped_by
from shardtoll.analyzers.findings.replicas.local_parameters import pipelined
from shardtoll.analyzers.findings.replicas.reductions import BACKWARD, sums
from shardtoll.analyzers.findings.replicas.replicas import replicas
from shardtoll.analyzers.shared.remedy_code import on_group
from shardtoll.analyzers.shared.tally import keep, text
from shardtoll.ledger import Evidence, Figure, Finding, Remedy, Where
from shardtoll.ledger.words.human import place
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import ranks as rank_words

LEAST: Final = 1e-3
"""Relative error of a norm below which it is rounding."""
MOST_STEPS: Final = 8


def find(context: Context) -> list[Finding]:
    """Return at most one finding of each way of taking a norm."""
    gradients = rows_of(context, "gradient")
    if gradients.empty:
        return []
    return [*_taken(context), *_added_up(context, gradients)]


def _once_each(rows: pd.DataFrame) -> float | None:
    """Return the sum of squares with each different part counted once; None if one is unknown."""
    if rows["square"].isna().any() or rows["hash"].isna().any():
        return None
    return float(whole_contents(rows).drop_duplicates(["name", "shape", "hash", *WHOLE])["square"].sum())


# -- norms that torch took ----------------------------------------------------------------------------


def _taken(context: Context) -> list[Finding]:
    norms, of = rows_of(context, "norm"), rows_of(context, "normed")
    norms = keep(norms, norms["placements"].isna() & norms["square"].notna())
    if norms.empty or of.empty:
        return []
    norms, of = as_one(clipped_by(context, norms, of, LEAST), of)
    if norms.empty:
        return []
    wrong: list[tuple[int, dict[int, float], float]] = []
    looked = 0
    grouped: Any = norms.groupby(["step", "nth"])
    for (step, nth), claimed in grouped:
        if looked == MOST_STEPS:
            break
        rows = of[(of["step"] == step).to_numpy(dtype=bool) & (of["nth"] == nth).to_numpy(dtype=bool)]
        rows = rows[rows["rank"].isin(claimed["rank"]).to_numpy(dtype=bool)]
        looked += 1
        if _still_apart(context, rows):
            continue
        truth = _once_each(rows)
        if not truth:
            continue
        tolerance = max(LEAST, math.sqrt(max(EPS.get(str(name), 0.0) for name in rows["dtype"].unique())))
        ratios = {
            int(rank): math.sqrt(float(square) / truth)
            for rank, square in claimed[["rank", "square"]].itertuples(index=False)
        }
        if any(abs(ratio - 1) > tolerance for ratio in ratios.values()):
            wrong.append((int(step), ratios, math.sqrt(truth)))
    if not wrong:
        return []
    step, ratios, truth = wrong[0]
    ranks = tuple(sorted(ratios))
    call = str(norms["name"].iloc[0])
    differ = max(ratios.values()) - min(ratios.values()) > LEAST
    low, high = min(ratios.values()), max(ratios.values())
    factor = f"{low:.4g} to {high:.4g}" if differ else f"{low:.4g}"
    tail = (
        (
            "each rank clips by its own norm, so ranks scale their gradients differently"
            if call.endswith("clip_grad_norm_")
            else "each rank takes a norm of its own"
        )
        if differ
        else "it counts replicas more than once"
        if low > 1
        else "it leaves out what other ranks hold"
    )
    return [
        Finding(
            kind="wrong-gradient",
            severity="error",
            title=f"the total gradient norm on {rank_words(ranks)} is {factor} times the true one "
            f"({truth:.4g}): {tail}",
            toll_ns=None,
            floor_ns=None,
            saving_ns=None,
            bytes=None,
            count=1,
            ranks=ranks,
            where=Where(phase="optimizer", op=call),
            evidence=(
                Evidence("proof", "the squares of all gradients, each part of the model counted once"),
                Evidence("true norm", truth),
                Evidence("step", step),
                Evidence("norms that are off", f"{len(wrong)} of {looked} checked"),
                *(Evidence(f"norm / true norm, rank {rank}", ratios[rank], "x") for rank in ranks[:16]),
            ),
            remedy=Remedy(
                "Take the norm of the DTensor gradients, not of their local parts: clip_grad_norm_ then "
                "reduces. Or add up over all ranks the squares of the part that each rank alone holds. "
                "FSDP1 has its own method.",
                "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # DTensors, FSDP2\n"
                "model.clip_grad_norm_(max_norm)  # FSDP1",
            ),
            # Clipping each stage of a pipeline by itself may be meant.
            confidence="likely" if pipelined(context) else "certain",
            cause="wrong-norm",
        )
    ]


def _still_apart(context: Context, rows: pd.DataFrame) -> bool:
    """Whether replicas' gradients differ as the norm is taken: their reduction comes later, or is missing."""
    prints = {
        (str(name), int(rank)): int(number)
        for name, rank, number in rows[["name", "rank", "hash"]].dropna().itertuples(index=False)
    }
    for copies in replicas(context):
        seen = {prints[copies.name, rank] for rank in copies.ranks if (copies.name, rank) in prints}
        if len(seen) > 1:
            return True
    return False


# -- sums of squares that the program added up --------------------------------------------------------


class _Sum(Struct, frozen=True):
    step: int
    sent: dict[int, float]
    got: dict[int, float]
    truth: float
    """The correct sum over the ranks of the group."""


def _added_up(context: Context, gradients: pd.DataFrame) -> list[Finding]:
    """Return the hand-made norms: one float32 that is a rank's sum of squares, added up over ranks.

    It is known by its value: on every rank the same multiple of the sum of squares of the gradients that the
    rank holds. Without clipping, which comes after, the multiple is one.
    """
    frame = context.in_steps
    frame = keep(
        frame,
        (frame["op"] == "all_reduce")
        & frame["phase"].isin(BACKWARD)
        & frame["number_sent"].notna()
        & frame["number_received"].notna()
        & (frame["group_size"] > 1)
        & sums(frame),
    )
    if frame.empty or gradients["square"].isna().any():
        return []
    frame = keep(frame, frame["step"].isin(gradients["step"].unique()))
    # Clipping has scaled them since; if torch took a norm, or was given one, they are known as they were.
    normed = rows_of(context, "normed")
    normed = keep(normed, (normed["nth"] == 0) & normed["square"].notna())
    takings = [
        (taken_rows, taken_rows.groupby(["step", "rank"])["square"].sum())
        for taken_rows in (gradients, normed)
    ]
    by_norm: dict[tuple[str | None, str], list[_Sum]] = {}
    first: dict[tuple[str | None, str], Any] = {}
    for _, calls in frame.groupby(["step", "group", "seq", "source"], dropna=False):
        step, group = int(calls["step"].iloc[0]), str(calls["group"].iloc[0])
        for over, of_group in _by_members(context, calls):
            recognised = (_recognised(of_group, over, step, local, rows) for rows, local in takings)
            total = next((each for each in recognised if each is not None), None)
            if total is None:
                continue
            key = (
                text(of_group["source"].iloc[0]),
                group if of_group["mesh_dim"].isna().iloc[0] else str(of_group["mesh_dim"].iloc[0]),
            )
            by_norm.setdefault(key, []).append(total)
            first.setdefault(key, of_group.iloc[0])
    findings = []
    for key, taken in by_norm.items():
        worst = max(taken, key=lambda each_sum: abs(math.log(_factor(each_sum))))
        if abs(_factor(worst) - 1) > LEAST:
            findings.append(_counted(first[key], worst, taken))
    return findings


def _by_members(context: Context, rows: pd.DataFrame) -> list[tuple[tuple[int, ...], pd.DataFrame]]:
    ranks_of = context.members
    overs = [
        ranks_of.get((str(group), int(rank))) for group, rank in zip(rows["group"], rows["rank"], strict=True)
    ]
    by_ranks = []
    for over in dict.fromkeys(overs):
        if over is not None:
            of_group = rows[np.array([ranks == over for ranks in overs])]
            if {int(rank) for rank in of_group["rank"]} == set(over) and len(of_group) == len(over):
                by_ranks.append((over, of_group))
    return by_ranks


def _recognised(
    rows: pd.DataFrame, over: tuple[int, ...], step: int, local: pd.Series[float], gradients: pd.DataFrame
) -> _Sum | None:
    """Return the sum if it is one of squares; None if it is something else."""
    sent, got = {}, {}
    for rank, before, after in rows[["rank", "number_sent", "number_received"]].itertuples(index=False):
        if not before > 0 or not after > 0:
            return None
        sent[int(rank)], got[int(rank)] = float(before), float(after)
    if any((step, rank) not in local.index or not local[step, rank] > 0 for rank in over):
        return None
    scales = np.array([sent[rank] / float(local[step, rank]) for rank in over])
    if scales.max() / scales.min() - 1 > LEAST:
        return None
    # If all ranks send the same number, only the norm itself counts: else a count of tokens would do as well.
    alike = max(sent.values()) / min(sent.values()) - 1 <= LEAST
    if alike and abs(scales.mean() - 1) > LEAST:
        return None
    if scales.mean() < 1 - LEAST:
        return None
    here = gradients[
        (gradients["step"] == step).to_numpy(dtype=bool) & gradients["rank"].isin(over).to_numpy(dtype=bool)
    ]
    truth = _once_each(here)
    return _Sum(step, sent, got, truth * float(scales.mean())) if truth else None


def _factor(total: _Sum) -> float:
    return math.sqrt(max(total.got.values()) / total.truth)


def _counted(first: Any, worst: _Sum, taken: list[_Sum]) -> Finding:
    factor, ranks = _factor(worst), tuple(sorted(worst.sent))
    # Equal sums on all ranks may be added up to be divided by their number afterwards.
    mean = abs(factor / math.sqrt(len(ranks)) - 1) <= LEAST
    source, dim = text(first["source"]), text(first["mesh_dim"])
    net = f"mesh dim {dim}" if dim else f"group {first['group']}"
    return Finding(
        kind="wrong-gradient",
        severity="warning" if mean else "error",
        title=f"the total gradient norm added up over {net}{place(None, source)} is "
        f"{factor:.4g} times the true one: "
        + (
            "it counts replicas once for each rank, unless it is divided by their number"
            if mean
            else "it counts replicas once for each rank"
            if factor > 1
            else "it leaves out what other ranks hold"
        ),
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=int(first["message_bytes"]),
        count=1,
        ranks=ranks,
        where=Where(
            phase=text(first["phase"]),
            module=text(first["module"]),
            op="all_reduce",
            source=source,
            group=str(first["group"]),
            mesh_dim=dim,
        ),
        evidence=(
            Evidence("proof", "the squares of these ranks' gradients, each part of the model counted once"),
            Evidence("factor", factor, "x"),
            Evidence("true norm over these ranks", math.sqrt(worst.truth)),
            Evidence("norm as added up", math.sqrt(max(worst.got.values()))),
            Evidence("step", worst.step),
            Evidence("norms looked at", times(len(taken), "norm")),
        ),
        remedy=Remedy(
            "Count each replica once. Add up over ranks only the squares of gradients that a rank alone "
            "holds (Shard). Add those of replicated gradients after the reduction. torch counts DTensor "
            "gradients right.",
            "sharded = sum(g.to_local().square().sum() for g in gradients if is_sharded(g))\n"
            f"dist.all_reduce(sharded{on_group(dim)})\n"
            "total = (sharded + sum(g.to_local().square().sum() for g in gradients if not "
            "is_sharded(g))).sqrt()",
        ),
        confidence="likely" if mean else "certain",
        figures=(Figure("too_large_by", factor, "x"),),
        cause="wrong-norm",
    )
