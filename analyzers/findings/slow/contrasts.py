"""Reasons for slow transfers that a comparison within the job shows: traffic, formats, compute."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.findings.slow.reasons import BY_PATTERN, Floats, Mask, Reason, Slow, contrast
from shardtoll.analyzers.shared.tally import text
from shardtoll.ledger import Evidence
from shardtoll.ledger.words.human import percent

BESIDE: Final = 0.5
"""Other transfers for each own from which a collective has company, and half of it hidden is overlapped."""

ALONE: Final = 0.1
"""Below this it has none."""

BY_COMPUTE: Final = 0.6
"""How much an overlap explains if all slow transfers have it, and no other shows it without. Compute takes a
part of the processors and of the memory's rate: it never more than doubles the time."""


def contention(of: Slow) -> Reason | None:
    """Other groups' transfers on the same cards or links at the same time."""
    others = of.each["others"].to_numpy(dtype=np.float64)
    difference = contrast(of, others >= BESIDE, others < ALONE)
    beside = of.column("others")
    with_company = float((beside >= BESIDE).mean())
    if difference is not None:
        score = difference.score
        facts = difference.evidence("with others beside", "alone")
    elif with_company >= BESIDE:
        score = BY_PATTERN * of.explained(of.column("predicted_ns") * (1 + beside))
        facts = ()
    else:
        return None
    return Reason(
        name="contention",
        score=score,
        why=f"for each of them {beside.mean():.1f} transfers of other groups run at the same time on the "
        "same cards or ranks",
        text="Run the groups' collectives one after the other: wait for one before issuing the next, "
        "limit FSDP's prefetch, or use different cards.",
        code="# FSDP2: one gather ahead, so that it does not meet the reductions of the layer before\n"
        "block.set_modules_to_forward_prefetch([])\n"
        "work.wait()  # of the other group's collective, before this one is issued",
        evidence=(
            Evidence(
                "transfers of other groups meanwhile, for each of these", round(float(beside.mean()), 2)
            ),
            *facts,
        ),
    )


def mixed_dtypes(of: Slow) -> Reason | None:
    """One element type is slow and another of the same size is not, or ranks disagree on it."""
    types = of.each["dtype"].fillna("").to_numpy(dtype=object)
    middle = of.each["factor"].groupby(types).median()
    middle = middle[middle.index != ""]
    if len(middle) < 2:
        return None
    worst = str(middle.idxmax())
    difference = contrast(of, types == worst, (types != worst) & (types != ""))
    if difference is None:
        return None
    rest = ", ".join(sorted(str(name) for name in middle.index if name != worst))
    return Reason(
        name=f"mixed dtypes ({worst} beside {rest})",
        score=difference.score,
        why=f"in {worst} they take {difference.having:.1f} times the prediction, in {rest} of the same size "
        f"{difference.lacking:.1f} times",
        text=f"Move all tensors in one format: those in {worst} are reduced in separate calls.",
        code="fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16,\n"
        "    reduce_dtype=torch.bfloat16))  # one format for all parameters of the group",
        evidence=difference.evidence(f"in {worst}", f"in {rest}"),
    )


def compute_overlap(of: Slow) -> Reason | None:
    """Compute at the same time takes processors and memory from the collective's kernels."""
    if of.context.on_cpu:
        return None
    hidden = of.each["hidden"].to_numpy(dtype=np.float64)
    beside: Mask = np.nan_to_num(hidden, nan=0.0) >= BESIDE
    alone: Mask = np.nan_to_num(hidden, nan=1.0) < ALONE
    difference = contrast(of, beside, alone)
    hidden_shares: Floats = of.column("hidden")
    share = float((np.nan_to_num(hidden_shares, nan=0.0) >= BESIDE).mean())
    if difference is not None:
        score, facts = difference.score, difference.evidence("behind compute", "alone")
    elif share >= BESIDE:
        score, facts = BY_COMPUTE * doubling_explains(of), ()
    else:
        return None
    return Reason(
        name="compute at the same time",
        score=score,
        why=f"{percent(share)} of them run behind compute, which takes processors and memory from them",
        text="Give communication a high-priority stream, so that its kernels get processors before the "
        "next matmul. Leave it if all of it is hidden.",
        code="options = torch.distributed.ProcessGroupNCCL.Options(is_high_priority_stream=True)\n"
        'torch.distributed.init_process_group("nccl", pg_options=options)',
        evidence=(Evidence("share that runs behind compute", round(share, 3)), *facts),
    )


def doubling_explains(of: Slow) -> float:
    """Return the part of the excess that is explained if something doubles their time at most, 0 to 1."""
    took, predicted = of.column("transfer_ns"), of.column("predicted_ns")
    excess = float(np.maximum(took - predicted, 0).sum())
    return min(1.0, float(predicted.sum()) / excess) if excess > 0 else 0.0


def dtypes_of_ranks(of: Slow, frame: pd.DataFrame) -> Reason | None:
    """Ranks that give one collective tensors of different element types.

    `frame` has the line's rows of ranks: match_id, dtype.
    """
    typed = frame[frame["dtype"].notna()]
    many = typed.groupby("match_id")["dtype"].nunique()
    mixed = many.index[many > 1]
    bad = of.bad["match_id"].isin(mixed)
    if not len(mixed) or not bad.any():
        return None
    names = sorted({text(name) or "" for name in typed[typed["match_id"].isin(mixed)]["dtype"]})
    over = np.maximum(of.column("transfer_ns") - of.column("predicted_ns"), 0)
    share = float(over[bad.to_numpy(dtype=bool)].sum()) / max(1.0, float(over.sum()))
    return Reason(
        name=f"mixed dtypes ({', '.join(names)} in one collective)",
        score=share,
        why=f"in {len(mixed)} of them ranks give tensors of different formats: {', '.join(names)}",
        text="Use the same format on all ranks: a rank misreads what another format sends.",
        code="tensor = tensor.to(torch.bfloat16)  # on every rank, before the collective",
        evidence=(Evidence("collectives whose ranks have different formats", len(mixed)),),
    )
