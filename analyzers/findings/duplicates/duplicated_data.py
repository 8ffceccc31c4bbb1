"""Data that is trained on twice: by several ranks in one step, or in the same order in every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.agreement import WHOLE, rows_of, whole_contents
from shardtoll.analyzers.findings.replicas.data_parallel import data_parallel
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import begins_with, keep, numbered, steps_spoken_of
from shardtoll.analyzers.shared.wrapper_causes import WRAPPER_CAUSES
from shardtoll.ledger import Evidence, Finding, Remedy, Where
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import ranks as rank_words

ENOUGH: Final = 8
"""Least elements of equal inputs that are no accident: a few labels of a batch may be equal by chance."""

LEAST_BATCHES: Final = 3
"""Different batches an epoch must have. One batch trained on over and over, or two in turn, is how programs
are timed and models overfitted on purpose."""

SAME_WORK: Final = 0.9
"""Part of forward's FLOPs that must be done on equal inputs if ranks also share their activations."""

SHARING: Final = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "broadcast", "send", "recv")

SAMPLER: Final = (
    "sampler = DistributedSampler(dataset)  # its own part of the data for each data-parallel rank\n"
    "loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)\n"
    "for epoch in range(epochs):\n"
    "    sampler.set_epoch(epoch)"
)


class Batches(Struct, frozen=True):
    """The batches of the ranks: one row a rank and forward."""

    rows: pd.DataFrame
    """step, nth, rank; `batch`, a number that equal batches share; `sound`, whether that they are equal says
    anything; `size`, the first dimension of the first input."""


@once
def batches(context: Context) -> Batches:
    """Return what each forward was given, all its tensors taken together."""
    rows = rows_of(context, "input")
    rows = keep(rows, rows["hash"].notna() & (rows["numel"] > 0))
    empty = pd.DataFrame(columns=["step", "nth", "rank", "batch", "sound", "size"])
    if rows.empty:
        return Batches(empty)
    constant = rows["constant"].to_numpy(dtype=bool, na_value=False)
    tell = rows[~constant]
    if tell.empty:
        return Batches(empty)
    content = numbered(whole_contents(tell), ["name", "shape", "dtype", "hash", *WHOLE])
    tell = tell.assign(content=content, enough=(tell["numel"] >= ENOUGH).to_numpy(dtype=bool))
    tell = tell.sort_values(["rank", "step", "nth", "content"], kind="stable")
    call = tell.groupby(["rank", "step", "nth"], sort=False)
    made = call.agg(enough=("enough", "any"), contents=("content", tuple)).reset_index()
    # The shapes of a forward's first tensor: constant ones have one too.
    first = rows.drop_duplicates(["rank", "step", "nth"])
    size = first["shape"].astype(str).str.extract(r"^\[(\d{1,15})[,\]]", expand=False)
    first = first[["rank", "step", "nth"]].assign(size=pd.to_numeric(size))
    made = made.merge(first, on=["rank", "step", "nth"], how="left")
    batch, _ = pd.factorize(made["contents"])
    by_forward = made.assign(batch=batch, sound=made["enough"])[list(empty.columns)]
    return Batches(by_forward.astype({"step": np.int64, "nth": np.int64, "rank": np.int64}))


TOY: Final = "each rank repeats one batch that no DataLoader gave it, as a benchmark does"


@once
def _loaded(context: Context) -> bool:
    """Whether a DataLoader, which has a sampler, gave the batches; live capture sees every fetch of one."""
    stalls = context.stalls
    return bool(((stalls["kind"] == "data") & stalls["before_ns"].notna()).any())


def _is_toy(context: Context, rows: pd.DataFrame) -> bool:
    """Whether each rank trains on one batch again and again that no DataLoader gave it.

    So do benchmarks and first tries: that ranks have equal batches, and again the same ones, is no mistake.
    """
    several = rows.groupby("rank")["batch"].size()
    return not _loaded(context) and bool(
        (several > 1).all() and (rows.groupby("rank")["batch"].nunique() == 1).all()
    )


def find(context: Context) -> list[Finding]:
    """Return batches that data-parallel ranks share, epochs in one order, and batches of uneven size."""
    rows = batches(context).rows
    if rows.empty:
        return []
    findings = []
    for ranks in data_parallel(context):
        mine = keep(rows, rows["rank"].isin(ranks))
        findings += _shared(context, mine, ranks)
        findings += _uneven(mine)
    return findings + _epochs(rows, _loaded(context))


# -- the same batch on several ranks ------------------------------------------------------------------


def _shared(context: Context, rows: pd.DataFrame, ranks: Sequence[int]) -> list[Finding]:
    sound = rows[rows["sound"].to_numpy(dtype=bool)]
    if sound.empty:
        return []
    forward = sound.groupby(["step", "nth", "batch"])["rank"]
    together = keep(sound, forward.transform("nunique") > 1)
    if together.empty or not _same_work(context, ranks):
        return []
    involved = tuple(sorted(int(rank) for rank in together["rank"].unique()))
    per_forward = together.groupby(["step", "nth"])
    in_forwards = len(per_forward)
    looked = len(sound[["step", "nth"]].drop_duplicates())
    ways = int(together.groupby(["step", "nth", "batch"])["rank"].nunique().max())
    often = in_forwards / looked
    if often < 0.5 and in_forwards < 2:
        return []
    steps = int(together["step"].nunique())
    toll = _toll(context, together, involved)
    whole = ways == len(ranks)
    toy = _is_toy(context, sound)
    return [
        Finding(
            kind="duplicated-data",
            severity="info" if toy else "warning",
            title=f"{rank_words(involved)} trained on the same batches in {steps} of "
            f"{times(int(sound['step'].nunique()), 'checked step')}: "
            + (
                f"{ways} data-parallel ranks do the work of one"
                if whole
                else f"up to {ways} data-parallel ranks share one batch"
            ),
            toll_ns=toll,
            floor_ns=None,
            saving_ns=toll,
            bytes=None,
            count=max(1, round(in_forwards / max(1, steps))),
            ranks=involved,
            where=Where(phase="forward", module="", op="input"),
            rows=steps_spoken_of(context.step_rows, involved, together["step"].unique()),
            evidence=(
                Evidence("ranks that saw equal batches", rank_words(involved)),
                Evidence("ranks to one batch, at most", ways),
                Evidence("forwards with equal batches", f"{in_forwards} of {looked} checked"),
                Evidence("steps", steps),
                Evidence("data-parallel ranks", rank_words(ranks)),
                Evidence("shown by", "equal fingerprints of all inputs that are not constant"),
                *((Evidence("why it is only information", TOY),) if toy else ()),
            ),
            remedy=Remedy(
                "Give each data-parallel rank its own part of the data: DistributedSampler, or "
                "split_dataset_by_node, or a generator seeded with the data-parallel rank.",
                SAMPLER,
                None if toll is None else f"the same samples spread over the {ways} ranks that repeat them",
            ),
            confidence="certain" if often >= 0.5 else "likely",
        )
    ]


def _same_work(context: Context, ranks: Sequence[int]) -> bool:
    """Whether ranks that have equal inputs also compute equally.

    Ranks that exchange activations in forward may share a batch on purpose and cut it inside the model. There
    nearly all of forward's matmuls must have equal inputs too.
    """
    frame = context.in_steps
    activations = keep(
        frame,
        (frame["phase"] == "forward")
        & frame["op"].isin(SHARING)
        & frame["module"].notna()
        & frame["parameter"].isna()
        & ~begins_with(frame["caused_by_op"], WRAPPER_CAUSES)
        & frame["rank"].isin(ranks),
    )
    ranks_of = context.members
    inside = [
        over
        for group, rank in activations[["group", "rank"]].drop_duplicates().itertuples(index=False)
        if (over := ranks_of.get((str(group), int(rank)))) and len(set(over) & set(ranks)) > 1
    ]
    if not inside:
        return True
    computes = context.computes_in_steps
    computes = keep(
        computes,
        (computes["phase"] == "forward") & computes["rank"].isin(ranks) & computes["input_hash"].notna(),
    )
    if computes.empty:
        return False
    same = computes.groupby(["step", "op", "module", "shapes", "input_hash"], dropna=False, observed=True)[
        "rank"
    ]
    shared = (same.transform("nunique") > 1).to_numpy(dtype=bool)
    flops = computes["flops"].to_numpy(dtype=np.float64)
    return bool(flops[shared].sum() >= SAME_WORK * flops.sum())


def _toll(context: Context, together: pd.DataFrame, ranks: Sequence[int]) -> int | None:
    """Return the compute that ranks did for a batch others did too, per step, on the mean rank; None if
    that is unknown."""
    rows = context.surveyed_rows
    rows = keep(rows, rows["rank"].isin(ranks))
    if rows.empty:
        return None
    ways = together.groupby(["step", "nth", "batch"])["rank"].transform("nunique")
    share = (1 - 1 / ways).groupby([together["step"], together["rank"]]).mean()
    step_and_rank = pd.MultiIndex.from_frame(rows[["step", "rank"]].astype(np.int64))
    extra = share.reindex(step_and_rank).fillna(0).to_numpy() * rows["compute_ns"].to_numpy(dtype=np.float64)
    return round(float(extra.mean()))


# -- epochs in one order ------------------------------------------------------------------------------


def _period(sequence: Sequence[int]) -> int | None:
    """Return after how many batches the order begins again, at least one whole epoch repeated; else None."""
    first: dict[int, int] = {}
    for number, batch in enumerate(sequence):
        if batch in first:
            period = number
            if first[batch] != 0 or period < LEAST_BATCHES or len(sequence) < 2 * period:
                return None
            again = all(sequence[i] == sequence[i - period] for i in range(period, len(sequence)))
            return period if again else None
        first[batch] = number
    return None


def _epochs(rows: pd.DataFrame, loaded: bool) -> list[Finding]:
    """Return the finding of epochs in one order; information if there is no DataLoader, and so no sampler."""
    rows = rows[rows["sound"].to_numpy(dtype=bool)].sort_values(["rank", "step", "nth"], kind="stable")
    periods: dict[int, tuple[int, int]] = {}
    by_rank: Any = rows.groupby("rank")
    for rank, of_rank in by_rank:
        sequence = of_rank["batch"].to_numpy(dtype=np.int64)
        # One batch given to several forwards in a row is one look at it.
        sequence = sequence[np.insert(sequence[1:] != sequence[:-1], 0, True)]
        period = _period(sequence.tolist())
        if period is not None:
            periods[int(rank)] = (period, len(sequence))
    if not periods:
        return []
    ranks = tuple(sorted(periods))
    period, seen = periods[ranks[0]]
    epochs = seen // period
    return [
        Finding(
            kind="duplicated-data",
            severity="warning" if loaded else "info",
            title=f"epochs repeat in the same order on {rank_words(ranks)}: "
            f"{times(period, 'batch')} an epoch, {epochs} epochs seen, each batch the same "
            f"samples as {period} batches before",
            toll_ns=None,
            floor_ns=None,
            saving_ns=None,
            bytes=None,
            count=1,
            ranks=ranks,
            where=Where(phase="forward", module="", op="epoch order"),
            evidence=(
                Evidence("batches an epoch", period),
                Evidence("batches seen", seen),
                Evidence("whole epochs seen", epochs),
                Evidence("ranks", rank_words(ranks)),
                Evidence("shown by", "the fingerprints of the inputs repeat with that period"),
                *(
                    ()
                    if loaded
                    else (Evidence("why it is only information", "no DataLoader gave the batches"),)
                ),
            ),
            remedy=Remedy(
                "Tell the sampler which epoch it is: without it DistributedSampler shuffles every epoch "
                "alike. Where "
                "the order is fixed on purpose (shuffle=False, a benchmark's few batches), this is no "
                "mistake.",
                "for epoch in range(epochs):\n    sampler.set_epoch(epoch)\n    for batch in loader:\n   "
                "     ...",
            ),
            confidence="likely",
        )
    ]


# -- batches of uneven size ---------------------------------------------------------------------------


def _uneven(rows: pd.DataFrame) -> list[Finding]:
    rows = rows[rows["size"].notna().to_numpy(dtype=bool)]
    sizes = rows.groupby(["step", "nth"])["size"]
    low, high, count = sizes.min(), sizes.max(), sizes.count()
    uneven = (low < high) & (count > 1)
    if not bool(uneven.any()):
        return []
    worst: Any = (high / low)[uneven].idxmax()
    in_step = rows[
        (rows["step"] == worst[0]).to_numpy(dtype=bool) & (rows["nth"] == worst[1]).to_numpy(dtype=bool)
    ]
    least, most = int(low[worst]), int(high[worst])
    ranks = tuple(sorted(int(rank) for rank in rows["rank"].unique()))
    steps = len({step for step, _ in uneven[uneven].index})
    mean = float(in_step["size"].mean())
    return [
        Finding(
            kind="duplicated-data",
            severity="info",
            title=f"batches of data-parallel {rank_words(ranks)} are uneven in "
            f"{steps} of {times(int(rows['step'].nunique()), 'checked step')}: {least} to {most} samples; "
            f"the mean of "
            "the ranks' means is not the mean of the samples",
            toll_ns=None,
            floor_ns=None,
            saving_ns=None,
            bytes=None,
            count=1,
            ranks=ranks,
            where=Where(phase="forward", module="", op="uneven batches"),
            evidence=(
                Evidence("step", int(worst[0])),
                *(
                    Evidence(f"samples, rank {rank}", int(size))
                    for rank, size in zip(
                        in_step["rank"].tolist()[:16], in_step["size"].tolist()[:16], strict=True
                    )
                ),
                Evidence("weight of a sample of the smallest batch against an even one", mean / least, "x"),
            ),
            remedy=Remedy(
                "Drop the uneven last batch, or weight each rank's loss by its share of the samples.",
                "DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=True)\n"
                "# or: loss = loss_sum * world_size / samples_on_all_ranks",
            ),
            confidence="certain",
        )
    ]
