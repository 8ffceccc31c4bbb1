"""Reasons for slow transfers that a comparison within the job shows: rank, traffic, formats, compute."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.slow_reasons import BY_PATTERN, LEAST_EACH, Floats, Mask, Reason, Slow, contrast
from shardtoll.analyzers.tally import text
from shardtoll.analyzers.words import percent
from shardtoll.analyzers.words import ranks as ranks_words
from shardtoll.ledger import Evidence

APART: Final = 1.5
"""A group is slow beside its siblings where its median factor is this many times that of the others."""

BESIDE: Final = 0.5
"""Other transfers for each own from which a collective has company, and half of it hidden is overlapped."""

ALONE: Final = 0.1
"""Below this it has none."""

BY_COMPUTE: Final = 0.5
"""What an overlap that all the slow ones have explains, without any that have it not: compute takes a part
of the processors and of the memory's rate, never more than doubles the time."""


def slow_rank(of: Slow) -> Reason | None:
    """Groups with one rank are slow and their siblings are not: the rank, its card or its links."""
    slow, against = _slow_groups(of.each)
    if not slow or not against:
        return None
    groups = of.each["group_id"].to_numpy(dtype=np.float64, na_value=np.nan)
    has, lacks = np.isin(groups, slow), np.isin(groups, against)
    found = contrast(of, has, lacks)
    if found is None:
        return None
    members = of.context.matches.members
    suspects = set.intersection(*(set(members[group]) for group in slow))
    counted = Counter(rank for rank in suspects for other in _slow_elsewhere(of) if rank in members[other])
    if counted:
        most = max(counted.values())
        suspects = {rank for rank in counted if counted[rank] == most}
    together = sorted({rank for group in slow for rank in members[group]})
    one = len(suspects) == 1
    who = (
        ranks_words(suspects)
        if one
        else f"one of {ranks_words(suspects)}"
        if suspects
        else ranks_words(together)
    )
    return Reason(
        name=f"one slow rank ({who})" if suspects else f"slow ranks ({who})",
        score=found.score if one else 0.95 * found.score,
        why=f"groups with {who} take {found.having:.1f} times the prediction, their siblings "
        f"{found.lacking:.1f} times",
        text=f"Look at the host and the network card of {who}: link errors, a card that fell back to a "
        "lower rate, clocks held down by heat. Exclude it, and see whether its groups are as fast as others.",
        code="# on the host of that rank\n"
        "# nvidia-smi -q -d PERFORMANCE,CLOCK; nvidia-smi nvlink -e; ibstat; ethtool eth0\n"
        'subprocess.run(["nvidia-smi", "-q", "-d", "PERFORMANCE,CLOCK"])',
        evidence=found.evidence(f"of groups with {who}", "of their siblings"),
    )


def _slow_groups(each: pd.DataFrame) -> tuple[list[int], list[int]]:
    """Return the numbers of the groups that are slow beside their siblings, and of those that are not."""
    known = each[each["group_id"].notna()]
    by_group = known.groupby(known["group_id"].astype("int64"))["factor"]
    middle = by_group.median()[by_group.size() >= LEAST_EACH]
    if len(middle) < 2:
        return [], []
    # Most of the groups may be slow, if each of them has the slow rank: the best show what is possible.
    line = APART * max(1.0, float(middle.min()))
    return middle[middle >= line].index.to_list(), middle[middle < line].index.to_list()


def _slow_elsewhere(of: Slow) -> list[int]:
    """Return the slow groups of all nets and ops: what they have in common is the rank."""
    found: list[int] = []
    for _, each in of.run.groupby(["net", "op"], sort=False):
        found += _slow_groups(each)[0]
    return found


def contention(of: Slow) -> Reason | None:
    """Other groups' transfers on the same cards or links at the same time."""
    others = of.each["others"].to_numpy(dtype=np.float64)
    found = contrast(of, others >= BESIDE, others < ALONE)
    beside = of.column("others")
    with_company = float((beside >= BESIDE).mean())
    if found is not None:
        score = found.score
        facts = found.evidence("with others beside", "alone")
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
        text="Let the groups' collectives follow each other: issue one after the other's work is waited for, "
        "limit how far FSDP prefetches, or put the groups on different cards.",
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
    found = contrast(of, types == worst, (types != worst) & (types != ""))
    if found is None:
        return None
    rest = ", ".join(sorted(str(name) for name in middle.index if name != worst))
    return Reason(
        name=f"mixed dtypes ({worst} beside {rest})",
        score=found.score,
        why=f"in {worst} they take {found.having:.1f} times the prediction, in {rest} of the same size "
        f"{found.lacking:.1f} times",
        text=f"Move all of it in one format: tensors in {worst} are reduced apart from those in {rest}, in "
        "calls of their own and by other kernels.",
        code="fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16,\n"
        "    reduce_dtype=torch.bfloat16))  # one format for all parameters of the group",
        evidence=found.evidence(f"in {worst}", f"in {rest}"),
    )


def compute_overlap(of: Slow) -> Reason | None:
    """Compute at the same time takes processors and memory from the collective's kernels."""
    if of.context.on_cpu:
        return None
    hidden = of.each["hidden"].to_numpy(dtype=np.float64)
    beside: Mask = np.nan_to_num(hidden, nan=0.0) >= BESIDE
    alone: Mask = np.nan_to_num(hidden, nan=1.0) < ALONE
    found = contrast(of, beside, alone)
    own: Floats = of.column("hidden")
    share = float((np.nan_to_num(own, nan=0.0) >= BESIDE).mean())
    if found is not None:
        score, facts = found.score, found.evidence("behind compute", "alone")
    elif share >= BESIDE:
        took, predicted = of.column("transfer_ns"), of.column("predicted_ns")
        excess = float(np.maximum(took - predicted, 0).sum())
        score = BY_COMPUTE * min(1.0, float(predicted.sum()) / excess) if excess > 0 else 0.0
        facts = ()
    else:
        return None
    return Reason(
        name="compute at the same time",
        score=score,
        why=f"{percent(share)} of them run behind compute, which takes processors and memory from them",
        text="What is hidden costs nothing; where it is not all hidden, give communication a stream of high "
        "priority, so that its kernels get processors before the next matmul does.",
        code="options = torch.distributed.ProcessGroupNCCL.Options(is_high_priority_stream=True)\n"
        'torch.distributed.init_process_group("nccl", pg_options=options)',
        evidence=(Evidence("share that runs behind compute", round(share, 3)), *facts),
    )


def dtypes_of_ranks(of: Slow, frame: pd.DataFrame) -> Reason | None:
    """Ranks that give one collective tensors of different element types.

    `frame` has the line's rows of ranks: match_id, dtype.
    """
    known = frame[frame["dtype"].notna()]
    many = known.groupby("match_id")["dtype"].nunique()
    mixed = many.index[many > 1]
    bad = of.bad["match_id"].isin(mixed)
    if not len(mixed) or not bad.any():
        return None
    names = sorted({text(name) or "" for name in known[known["match_id"].isin(mixed)]["dtype"]})
    over = np.maximum(of.column("transfer_ns") - of.column("predicted_ns"), 0)
    share = float(over[bad.to_numpy(dtype=bool)].sum()) / max(1.0, float(over.sum()))
    return Reason(
        name=f"mixed dtypes ({', '.join(names)} in one collective)",
        score=share,
        why=f"in {len(mixed)} of them ranks give tensors of different formats: {', '.join(names)}",
        text="Give the same format on all ranks: what one rank sends another reads as something else.",
        code="tensor = tensor.to(torch.bfloat16)  # on every rank, before the collective",
        evidence=(Evidence("collectives whose ranks have different formats", len(mixed)),),
    )
